"""The seams: the named functions where a backend may put a fused kernel.

Each is under ``jax.jit`` by itself, so it appears in a jaxpr under its own name and still
survives ``vmap`` and ``grad``. Weights are stored as Hugging Face stores them, [out, in].
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt16

from specjax import kernels
from specjax.kernels.primitive import two_forms


def _product(x: Float[Array, "N I"], weight: Float[Array, "O I"]) -> Float[Array, "N O"]:
    dtype = jnp.promote_types(x.dtype, weight.dtype)
    return jnp.einsum(
        "ni,oi->no", x.astype(dtype), weight.astype(dtype), preferred_element_type=jnp.float32
    )


product = two_forms("product", _product, kernels.linear)


@jax.jit
def linear(
    x: Float[Array, "*lead I"], weight: Float[Array, "O I"], bias: Float[Array, "O"] | None = None
) -> Float[Array, "*lead O"]:
    """Multiply by a stored matrix: ``x @ weight.T + bias``, summed up in float32.

    As one matrix: with leading axes kept, training was 1.25x slower.
    """
    *lead, size = x.shape
    y = product(x.reshape(math.prod(lead), size), weight)
    y = y.astype(x.dtype).reshape(*lead, weight.shape[0])
    return y if bias is None else y + bias.reshape((1,) * len(lead) + bias.shape)


def _rms_norm(
    x: Float[Array, "N D"], weight: Float[Array, "D"], epsilon: Float[Array, ""]
) -> Float[Array, "N D"]:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return wide * weight[None].astype(jnp.float32)


scale_rows = two_forms("scale_rows", _rms_norm, kernels.rms_norm)


@functools.partial(jax.jit, static_argnames="epsilon")
def rms_norm(
    x: Float[Array, "*lead D"], weight: Float[Array, "D"], epsilon: float
) -> Float[Array, "*lead D"]:
    """Scale to unit root mean square, in float32 (Zhang & Sennrich 2019)."""
    rows = scale_rows(x.reshape(-1, x.shape[-1]), weight, jnp.float32(epsilon))
    return rows.astype(x.dtype).reshape(x.shape)


def _row_sums(x: Float[Array, "N V"]) -> Float[Array, "N"]:
    return x.sum(axis=-1)


def _row_products(x: Float[Array, "N V"]) -> Float[Array, "N"]:
    return kernels.linear(x, jnp.ones((1, x.shape[1]), jnp.float32))[:, 0]


add_rows = two_forms("add_rows", _row_sums, _row_products)


def row_sums(x: Float[Array, "*lead V"]) -> Float[Array, "*lead"]:
    """Add up the last axis, each row's numbers in the same order whatever stands beside it."""
    return add_rows(x.reshape(-1, x.shape[-1])).reshape(x.shape[:-1])


def softmax(logits: Float[Array, "*lead V"]) -> Float[Array, "*lead V"]:
    """Return probabilities."""
    weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / row_sums(weights)[..., None]


def log_softmax(logits: Float[Array, "*lead V"]) -> Float[Array, "*lead V"]:
    """Return log probabilities."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - jnp.log(row_sums(jnp.exp(shifted)))[..., None]


@functools.partial(jax.jit, static_argnames="epsilon")
def layer_norm(
    x: Float[Array, "*lead D"], weight: Float[Array, "D"], bias: Float[Array, "D"], epsilon: float
) -> Float[Array, "*lead D"]:
    """Standardise the last axis, in float32 (Ba et al. 2016)."""
    wide, size = x.astype(jnp.float32), x.shape[-1]
    wide = wide - row_sums(wide)[..., None] / size
    wide = wide * jax.lax.rsqrt(row_sums(wide * wide)[..., None] / size + epsilon)
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


def _blank(x: Float[Array, "B N D"], present: Bool[Array, "B N"]) -> Float[Array, "B N D"]:
    return x


def _blanked(x: Float[Array, "B N D"], present: Bool[Array, "B N"]) -> Float[Array, "B N D"]:
    return jnp.where(present[:, :, None], x, 0)


def _hide(mask: Bool[Array, "B N W"], present: Bool[Array, "B N"]) -> Bool[Array, "B N W"]:
    return mask


def _hidden(mask: Bool[Array, "B N W"], present: Bool[Array, "B N"]) -> Bool[Array, "B N W"]:
    return mask & present[:, :, None]


# Nodes that are only padding: on a CPU they are zeros and see nothing, and then no product reads a
# weight for them (``kernels.linear``). Elsewhere they are computed, and nobody looks.
blank = two_forms("blank", _blank, _blanked)
hide = two_forms("hide", _hide, _hidden)


@jax.jit
def swiglu(gate: Float[Array, "*lead F"], up: Float[Array, "*lead F"]) -> Float[Array, "*lead F"]:
    """Gate with SiLU (Shazeer 2020)."""
    return jax.nn.silu(gate) * up


def _attention(
    query: Float[Array, "B N H d"],
    keys: Shaped[Array, "B KH W d"],
    values: Shaped[Array, "B KH W e"],
    mask: Bool[Array, "B N W"],
) -> Float[Array, "B N H e"]:
    """Attend by two products.

    The heads of a group stand as further rows of one product per key head (forward and
    backward took 78 ms so, 140 ms with the group as an axis of its own, at B 16, W 256).
    The mask sets -1e30, not -inf: a row that sees nothing (an idle slot) must not turn into NaN.
    """
    if keys.dtype == BITS:
        keys, values = from_bits(keys), from_bits(values)
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
    return mixed.reshape(batch, nodes, heads, values.shape[3]).astype(jnp.float32)


attend = two_forms("attend", _attention, kernels.attention)


@jax.jit
def attention(
    query: Float[Array, "B N H d"],
    keys: Shaped[Array, "B KH W d"],
    values: Shaped[Array, "B KH W e"],
    mask: Bool[Array, "B N W"],
) -> Float[Array, "B N H e"]:
    """Attend to the cache's window, scaled by d ** -0.5; query heads share key heads in groups.

    Softmax in float32. What a row gets that sees nothing (an idle slot) is finite.
    """
    return attend(query, keys, values, mask).astype(query.dtype)


@jax.jit
def write_kv(
    leaf: Shaped[Array, "B H T d"], new: Float[Array, "B N H d"], slots: Int[Array, "B N"]
) -> Shaped[Array, "B H T d"]:
    """Write node n of row b into slot ``slots[b, n]``; slots past the capacity are dropped.

    One batched scatter: under donation it updates the leaf in place.
    """
    rows = jnp.arange(leaf.shape[0])[:, None]
    new = to_bits(new.astype(jnp.bfloat16)) if leaf.dtype == BITS else new.astype(leaf.dtype)
    return leaf.at[rows, :, slots].set(new, mode="drop")


@jax.jit
def embed(table: Float[Array, "V D"], index: Int[Array, "*lead"]) -> Float[Array, "*lead D"]:
    """Read rows of a table."""
    if table.dtype != jnp.bfloat16:
        return table[index]
    return from_bits(to_bits(table)[index])


# XLA on a CPU turns a whole bfloat16 array to float32 and back to write one row of it, or to read
# one: rounds of 32 rows of the bundled target took 14.8 ms so, in float32 5.4. As integers rows are
# moved as they are.
BITS = jnp.uint16


def to_bits(x: Float[Array, "*lead"]) -> UInt16[Array, "*lead"]:
    """Return bfloat16 numbers as integers of the same bits."""
    return jax.lax.bitcast_convert_type(x, BITS)


def from_bits(x: UInt16[Array, "*lead"]) -> Float[Array, "*lead"]:
    """Return what ``to_bits`` was given."""
    return jax.lax.bitcast_convert_type(x, jnp.bfloat16)
