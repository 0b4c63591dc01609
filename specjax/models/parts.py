"""What every model is made of: matrices, norms, tables and the MLP.

Modules compute and never assign.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specjax import ops
from specjax.config import ModelConfig
from specjax.types import PyTree


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def noise(key: jax.Array, shape: tuple[int, ...], dtype: str, size_in: int) -> jax.Array:
    """Draw fresh weights, std ``size_in ** -0.5``: one program for all of the same shape.

    Flat, which compiles up to eight times as fast.
    """
    flat = jax.random.normal(key, (math.prod(shape),), dtype) * size_in**-0.5
    return flat.reshape(shape)


class Linear(nnx.Module):
    """A stored matrix [out, in] and, where the architecture has one, a bias."""

    def __init__(self, size_in: int, size_out: int, *, bias: bool, dtype: str, rngs: nnx.Rngs):
        self.weight = nnx.Param(noise(rngs(), (size_out, size_in), dtype, size_in))
        self.bias = nnx.Param(jnp.zeros(size_out, dtype)) if bias else None

    def __call__(self, x: Float[Array, "*lead I"]) -> Float[Array, "*lead O"]:
        return ops.linear(x, self.weight[...], None if self.bias is None else self.bias[...])


class Norm(nnx.Module):
    """RMSNorm, or LayerNorm where there is a bias."""

    def __init__(self, config: ModelConfig, size: int, epsilon: float | None = None):
        self.epsilon = config.norm_eps if epsilon is None else epsilon
        self.weight = nnx.Param(jnp.ones(size, config.dtype))
        bias = config.norm == "layer"
        self.bias = nnx.Param(jnp.zeros(size, config.dtype)) if bias else None

    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
        if self.bias is None:
            return ops.rms_norm(x, self.weight[...], self.epsilon)
        return ops.layer_norm(x, self.weight[...], self.bias[...], self.epsilon)


class Embedding(nnx.Module):
    """A table of rows."""

    def __init__(self, rows: int, size: int, *, dtype: str, rngs: nnx.Rngs):
        self.weight, self.dtype = nnx.Param(noise(rngs(), (rows, size), dtype, size)), dtype

    def __call__(self, index: Int[Array, "*lead"]) -> Float[Array, "*lead D"]:
        return ops.embed(self.weight[...], index).astype(self.dtype)


class MLP(nnx.Module):
    """SwiGLU, or two matrices with ReLU (OPT)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, wide: int | None = None):
        size, wide = config.hidden_size, wide or config.intermediate_size
        facts = {"bias": config.mlp_bias, "dtype": config.dtype, "rngs": rngs}
        self.gated, self.joined = config.mlp == "swiglu", config.joined
        if self.gated and self.joined:
            self.gate_up_proj = Linear(size, 2 * wide, **facts)
        elif self.gated:
            self.gate_proj = Linear(size, wide, **facts)
        if not (self.gated and self.joined):
            self.up_proj = Linear(size, wide, **facts)
        self.down_proj = Linear(wide, size, **facts)

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        if not self.gated:
            return self.down_proj(jax.nn.relu(self.up_proj(x)))
        if self.joined:
            gate, up = jnp.split(self.gate_up_proj(x), 2, axis=-1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(ops.swiglu(gate, up))


def pick_one(only: Int[Array, "B"] | None, nodes: PyTree) -> PyTree:
    """Leave one node of each row: arrays [B, N, ...] become [B, 1, ...]; None leaves all."""
    if only is None:
        return nodes
    rows = jnp.arange(only.shape[0])
    return jax.tree.map(lambda leaf: leaf[rows, only][:, None], nodes)
