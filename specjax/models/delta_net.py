"""The gated delta net: a layer with a recurrent state in place of keys and values.

(Yang et al. 2024, arXiv:2412.06464; Qwen3-Next, Qwen3.5.) A short causal convolution, the gated
delta rule of ``core.delta``, and a gated norm per head.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from specjax.core import delta, ops
from specjax.core.types import DeltaInputs, NodeOrder, Recurrent
from specjax.models.config import Delta, ModelConfig
from specjax.models.modules import Linear, Norm, noise

EPSILON = 1e-6  # of the length of queries and keys


class Steps(NamedTuple):
    """How the nodes of a pass follow each other."""

    order: NodeOrder
    parents: Int[Array, "B N"]  # -1 stands for the text
    present: Bool[Array, "B N"]


class Taps(nnx.Module):
    """The weights of a convolution of each channel by itself, [C, 1, taps]."""

    def __init__(self, channels: int, taps: int, *, dtype: str, rngs: nnx.Rngs):
        self.weight = nnx.Param(noise(rngs(), (channels, 1, taps), dtype, taps))


class DeltaNet(nnx.Module):
    """Linear attention by the gated delta rule."""

    def __init__(self, config: ModelConfig, facts: Delta, *, rngs: nnx.Rngs):
        size, dtype, self.facts = config.hidden_size, config.dtype, facts
        wide, narrow = facts.value_size, facts.key_size

        def linear(size_out: int) -> Linear:
            return Linear(size, size_out, bias=False, dtype=dtype, rngs=rngs)

        if facts.merged:
            self.in_proj_qkvz = linear(2 * narrow + 2 * wide)
            self.in_proj_ba = linear(2 * facts.num_value_heads)
        else:
            self.in_proj_qkv, self.in_proj_z = linear(2 * narrow + wide), linear(wide)
            self.in_proj_b = linear(facts.num_value_heads)
            self.in_proj_a = linear(facts.num_value_heads)
        self.conv1d = Taps(facts.channels, facts.conv_kernel, dtype=dtype, rngs=rngs)
        self.A_log = nnx.Param(jnp.zeros(facts.num_value_heads, jnp.float32))
        self.dt_bias = nnx.Param(jnp.ones(facts.num_value_heads, jnp.float32))
        self.norm = Norm(config, facts.value_head_dim, offset=0.0)
        self.out_proj = Linear(wide, size, bias=False, dtype=dtype, rngs=rngs)

    def project(self, x: Float[Array, "B N D"]) -> tuple[Array, Array, Array, Array]:
        """Return [queries, keys, values] of all heads, the gate, and the b and a of each head.

        Qwen3-Next has these for each key head, one behind the other.
        """
        facts, lead = self.facts, x.shape[:2]
        if not facts.merged:
            return self.in_proj_qkv(x), self.in_proj_z(x), self.in_proj_b(x), self.in_proj_a(x)
        heads, key = facts.num_key_heads, facts.key_head_dim
        each = facts.num_value_heads // heads
        value = each * facts.value_head_dim
        parts = self.in_proj_qkvz(x).reshape(*lead, heads, -1)
        parts = jnp.split(parts, [key, 2 * key, 2 * key + value], axis=-1)
        *qkv, z = (part.reshape(*lead, -1) for part in parts)
        b, a = jnp.split(self.in_proj_ba(x).reshape(*lead, heads, -1), [each], axis=-1)
        return jnp.concatenate(qkv, axis=-1), z, b.reshape(*lead, -1), a.reshape(*lead, -1)

    def __call__(
        self, x: Float[Array, "B N D"], steps: Steps, cache: Recurrent
    ) -> tuple[Recurrent, Float[Array, "B N D"]]:
        """Return the layer's state, and its output projected back to the hidden size."""
        facts, lead, wide = self.facts, x.shape[:2], jnp.float32
        channels, z, b, a = self.project(x)
        channels = channels.astype(cache.tail.dtype)
        mixed = delta.convolve(self.conv1d.weight[...][:, 0], cache.tail, channels, steps.parents)
        mixed = jax.nn.silu(mixed).astype(x.dtype).astype(wide)
        narrow = facts.key_size
        query, key, value = jnp.split(mixed, [narrow, 2 * narrow], axis=-1)
        query, key = (unit(y.reshape(*lead, facts.num_key_heads, -1)) for y in (query, key))
        slope = jnp.exp(self.A_log[...].astype(wide))[None, None]
        step = jax.nn.softplus(a.astype(wide) + self.dt_bias[...].astype(wide)[None, None])
        inputs = DeltaInputs(
            keys=key,
            values=value.reshape(*lead, facts.num_value_heads, -1),
            decay=-slope * step,
            strength=jax.nn.sigmoid(b.astype(wide)),
            channels=channels,
        )
        query = query * facts.key_head_dim**-0.5
        if steps.order == "tree":
            output = delta.branch(cache.state, query, inputs, steps.parents)
            cache = cache._replace(inputs=inputs)
        else:
            state, output = delta.advance(cache.state, query, inputs, steps.present)
            if steps.order == "text":
                count = steps.present.sum(axis=1, dtype=jnp.int32)
                cache = Recurrent(state, delta.shift(cache.tail, channels, count))
            else:
                cache = cache._replace(inputs=inputs)
        output = self.norm(output.astype(x.dtype)).astype(wide)
        output = output * jax.nn.silu(z.astype(wide)).reshape(output.shape)
        return cache, self.out_proj(output.astype(x.dtype).reshape(*lead, -1))


def unit(x: Float[Array, "B N H d"]) -> Float[Array, "B N H d"]:
    """Return vectors of length 1."""
    return x * jax.lax.rsqrt(ops.row_sums(x * x)[..., None] + EPSILON)
