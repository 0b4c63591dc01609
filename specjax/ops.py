"""The seams: the named functions where a backend may put a fused kernel.

Each is under ``jax.jit`` by itself, so it appears in a jaxpr under its own name and still
survives ``vmap`` and ``grad``. Weights are stored as Hugging Face stores them, [out, in].
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

SKINNY_ROWS = 128


@jax.jit
def linear(
    x: Float[Array, "*lead I"], weight: Float[Array, "O I"], bias: Float[Array, "O"] | None = None
) -> Float[Array, "*lead O"]:
    """Multiply by a stored matrix: ``x @ weight.T + bias``.

    With few rows the product is bound by reading the weight, and on a CPU how XLA is asked
    decides the speed (24 products of 768 x 2048, ms for 1 / 4 / 8 rows): ``x @ w.T`` 11.5 /
    28.7 / 31.6, ``x @ w_transposed`` 13.1 / 18.2 / 20.7, and ``weight @ columns`` with both
    sides held in that layout, as here, 11.5 / 12.4 / 14.0. Columns come in multiples of 4
    (5 columns took 16.8, 8 take 14.0).

    Faster yet, and left for one change, since every ratio to plain decoding moves with it: XLA
    gives one core to the product of a small matrix and one column, and all cores to a batch of
    four parts of it (a step of the bundled target 2.0 -> 1.6 ms, of 88M parameters 11.3 -> 10.5);
    matrices stored [in, out] verify 8 tokens of the bundled target in about a tenth less.
    """
    *lead, size = x.shape
    rows = math.prod(lead)
    if rows > SKINNY_ROWS:  # as one matrix: with leading axes kept, training was 1.25x slower
        y = jnp.einsum("ri,oi->ro", x.reshape(rows, size), weight)
        y = y.reshape(*lead, weight.shape[0])
    else:
        columns = x.reshape(rows, size).T
        if rows > 1:
            columns = jnp.pad(columns, ((0, 0), (0, -rows % 4)))
        product = weight @ jax.lax.optimization_barrier(columns)
        y = jax.lax.optimization_barrier(product)[:, :rows].T.reshape(*lead, weight.shape[0])
    return y if bias is None else y + bias.reshape((1,) * len(lead) + bias.shape)


@functools.partial(jax.jit, static_argnames="epsilon")
def rms_norm(
    x: Float[Array, "*lead D"], weight: Float[Array, "D"], epsilon: float
) -> Float[Array, "*lead D"]:
    """Scale to unit root mean square, in float32 (Zhang & Sennrich 2019)."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return wide.astype(x.dtype) * weight.reshape((1,) * (x.ndim - 1) + weight.shape)


@functools.partial(jax.jit, static_argnames="epsilon")
def layer_norm(
    x: Float[Array, "*lead D"], weight: Float[Array, "D"], bias: Float[Array, "D"], epsilon: float
) -> Float[Array, "*lead D"]:
    """Standardise the last axis, in float32 (Ba et al. 2016)."""
    wide = x.astype(jnp.float32)
    wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    shape = (1,) * (x.ndim - 1) + weight.shape
    return wide.astype(x.dtype) * weight.reshape(shape) + bias.reshape(shape)


@jax.jit
def rotate(
    x: Float[Array, "B N H d"], cos: Float[Array, "B N d2"], sin: Float[Array, "B N d2"]
) -> Float[Array, "B N H d"]:
    """Apply rotary position embedding to the two halves of each head (Su et al. 2021)."""
    cos, sin = cos[:, :, None].astype(x.dtype), sin[:, :, None].astype(x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


@jax.jit
def swiglu(gate: Float[Array, "*lead F"], up: Float[Array, "*lead F"]) -> Float[Array, "*lead F"]:
    """Gate with SiLU (Shazeer 2020)."""
    return jax.nn.silu(gate) * up


@jax.jit
def attention(
    query: Float[Array, "B N H d"],
    keys: Float[Array, "B KH W d"],
    values: Float[Array, "B KH W e"],
    mask: Bool[Array, "B N W"],
) -> Float[Array, "B N H e"]:
    """Attend to the cache's window, scaled by d ** -0.5; query heads share key heads in groups.

    The heads of a group stand as further rows of one product per key head (forward and
    backward took 78 ms so, 140 ms with the group as an axis of its own, at B 16, W 256).
    Softmax in float32. The mask sets -1e30, not -inf: a row that sees nothing (an idle slot)
    must not turn into NaN.
    """
    batch, nodes, heads, size = query.shape
    shared, window = keys.shape[1], keys.shape[2]
    rows = heads // shared * nodes
    stacked = query.reshape(batch, nodes, shared, -1, size).transpose(0, 2, 3, 1, 4)
    stacked = stacked.reshape(batch, shared, rows, size)
    scores = jnp.einsum("bkrd,bkwd->bkrw", stacked, keys, preferred_element_type=jnp.float32)
    seen = jnp.broadcast_to(mask[:, None], (batch, heads // shared, nodes, window))
    seen = seen.reshape(batch, 1, rows, window)
    probs = jax.nn.softmax(jnp.where(seen, scores * size**-0.5, -1e30), axis=-1)
    mixed = jnp.einsum("bkrw,bkwd->bkrd", probs.astype(values.dtype), values)
    mixed = mixed.reshape(batch, shared, -1, nodes, values.shape[3]).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(batch, nodes, heads, values.shape[3])


@jax.jit
def write_kv(
    leaf: Float[Array, "B H T d"], new: Float[Array, "B N H d"], slots: Int[Array, "B N"]
) -> Float[Array, "B H T d"]:
    """Write node n of row b into slot ``slots[b, n]``; slots past the capacity are dropped.

    One batched scatter: under donation it updates the leaf in place.
    """
    rows = jnp.arange(leaf.shape[0])[:, None]
    return leaf.at[rows, :, slots].set(new.astype(leaf.dtype), mode="drop")
