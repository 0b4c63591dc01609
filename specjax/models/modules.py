"""The nnx modules that all models share: linear layers, norms, embeddings and the MLP.

They assign nothing when they are called.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specjax.core import ops
from specjax.core.types import PyTree
from specjax.models.config import ModelConfig


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def noise(key: jax.Array, shape: tuple[int, ...], dtype: str, size_in: int) -> jax.Array:
    """Return normal random weights of std ``size_in ** -0.5``; one program per shape.

    They are drawn as a flat array, which compiles up to eight times as fast.
    """
    flat = jax.random.normal(key, (math.prod(shape),), dtype) * size_in**-0.5
    return flat.reshape(shape)


class Linear(nnx.Module):
    """A linear layer: a matrix [out, in] and, where the architecture has one, a bias."""

    def __init__(self, size_in: int, size_out: int, *, bias: bool, dtype: str, rngs: nnx.Rngs):
        self.weight = nnx.Param(noise(rngs(), (size_out, size_in), dtype, size_in))
        self.bias = nnx.Param(jnp.zeros(size_out, dtype)) if bias else None

    def __call__(self, x: Float[Array, "*lead I"]) -> Float[Array, "*lead O"]:
        """Return ``x @ weight.T + bias``; the matrix may be an ``Int8Matrix``."""
        bias = None if self.bias is None else self.bias[...]
        return ops.linear(x, self.weight.get_value(), bias)


class Norm(nnx.Module):
    """RMSNorm, or LayerNorm (OPT)."""

    def __init__(
        self,
        config: ModelConfig,
        size: int,
        epsilon: float | None = None,
        offset: float | None = None,
        *,
        weighted: bool = True,
    ):
        self.epsilon = config.norm_eps if epsilon is None else epsilon
        self.offset = config.norm_offset if offset is None else offset
        weight = jnp.full(size, 1 - self.offset, config.dtype)
        self.weight = nnx.Param(weight) if weighted else None
        bias = config.norm == "layer"
        self.bias = nnx.Param(jnp.zeros(size, config.dtype)) if bias else None

    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
        """Return the normalised last axis."""
        if self.weight is None:
            return ops.rms_norm(x, jnp.ones(x.shape[-1], x.dtype), self.epsilon)
        if self.bias is None:
            weight = self.weight[...]
            if self.offset:  # added in float32, or bfloat16 loses its small part
                weight = weight.astype(jnp.float32) + self.offset
            return ops.rms_norm(x, weight, self.epsilon)
        return ops.layer_norm(x, self.weight[...], self.bias[...], self.epsilon)


class Embedding(nnx.Module):
    """An embedding table."""

    def __init__(self, rows: int, size: int, *, dtype: str, rngs: nnx.Rngs):
        self.weight, self.dtype = nnx.Param(noise(rngs(), (rows, size), dtype, size)), dtype

    def __call__(self, index: Int[Array, "*lead"]) -> Float[Array, "*lead D"]:
        """Return the rows ``index``."""
        return ops.embed(self.weight[...], index).astype(self.dtype)


class MLP(nnx.Module):
    """The feed-forward layer: gated by one of ``ops.ACTIVATIONS``, or two matrices with ReLU."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, wide: int | None = None):
        size, wide = config.hidden_size, wide or config.intermediate_size
        facts = {"bias": config.mlp_bias, "dtype": config.dtype, "rngs": rngs}
        self.activation = config.mlp
        self.gated, self.joined = config.mlp != "relu", config.joined
        if self.gated and self.joined:
            self.gate_up_proj = Linear(size, 2 * wide, **facts)
        elif self.gated:
            self.gate_proj = Linear(size, wide, **facts)
        if not (self.gated and self.joined):
            self.up_proj = Linear(size, wide, **facts)
        self.down_proj = Linear(wide, size, **facts)

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Return the layer's output."""
        if not self.gated:
            return self.down_proj(jax.nn.relu(self.up_proj(x)))
        halves = (self.gate_up_proj,) if self.joined else (self.gate_proj, self.up_proj)
        return self.down_proj(ops.ACTIVATIONS[self.activation](*(half(x) for half in halves)))


def pick_one(only: Int[Array, "B"] | None, nodes: PyTree) -> PyTree:
    """Return node ``only`` of each row: arrays [B, N, ...] become [B, 1, ...]; None keeps all."""
    if only is None:
        return nodes
    rows = jnp.arange(only.shape[0])
    return jax.tree.map(lambda leaf: leaf[rows, only][:, None], nodes)
