"""Arctic's LSTM speculator: an LSTM reads the drafted tokens, from the target's hidden state on.

It is the MLP speculator (arXiv:2404.19124) with an LSTM cell for its recurrent layer, as Arctic
Inference's ``ArcticLSTMSpeculator`` (method "sum_lstm") computes it. One embedding is added to all
four gates, and stages share their weights except the first projections.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specjax.core import ops
from specjax.models.config import LstmConfig
from specjax.models.modules import Embedding, Linear

EPSILON = 1e-6
GATES = ("forget", "input", "output", "cell")


class ScaleShift(nnx.Module):
    """RMSNorm with a bias."""

    def __init__(self, size: int, dtype: str):
        self.weight = nnx.Param(jnp.ones(size, dtype))
        self.bias = nnx.Param(jnp.zeros(size, dtype))

    def __call__(self, x: Float[Array, "B I"]) -> Float[Array, "B I"]:
        return ops.rms_norm(x, self.weight[...], EPSILON) + self.bias[...][None]


class LstmSpeculator(nnx.Module):
    """The speculator; its state after a stage is [hidden ; cell], before the first the target's."""

    def __init__(self, config: LstmConfig, *, rngs: nnx.Rngs):
        self.config, size = config, config.inner_size
        facts = {"dtype": config.dtype, "rngs": rngs}
        inputs = config.hidden_size, size  # the target's hidden state, then its own
        self.emb = Embedding(config.vocab_size, size, **facts)
        self.proj = nnx.Dict(
            {
                gate: nnx.List(Linear(wide, size, bias=False, **facts) for wide in inputs)
                for gate in GATES
            }
        )
        self.cell_ln = ScaleShift(size, config.dtype)
        self.state_ln = ScaleShift(size, config.dtype)
        self.head = Linear(size, config.vocab_size, bias=False, **facts)

    def start(self, hidden: Float[Array, "B D"]) -> Float[Array, "B D"]:
        """Return the first state: the target's hidden state, normalised if the config says so."""
        if not self.config.scale_input:
            return hidden
        return ops.rms_norm(hidden, jnp.ones(hidden.shape[-1], hidden.dtype), EPSILON) / 2**0.5

    def __call__(
        self, state: Float[Array, "B S"], token: Int[Array, "B"], stage: int
    ) -> tuple[Float[Array, "B I2"], Float[Array, "B V"]]:
        """Return the next state and its logits, given the token after ``state``."""
        size, gelu = self.config.inner_size, jax.nn.gelu
        hidden, cell = (state, 0.0) if stage == 0 else jnp.split(state, 2, axis=-1)
        keep = 0.5 ** (0.5 / self.config.n_predict)
        told = math.sqrt((1 - keep**2) * size / 2) / keep * self.emb(token)
        forget, admit, show, new = (self.proj[gate][min(stage, 1)](hidden) + told for gate in GATES)
        new = gelu(self.cell_ln(new), approximate=False) * jax.nn.sigmoid(admit)
        cell = cell * jax.nn.sigmoid(forget) + new
        hidden = gelu(self.state_ln(cell), approximate=False) * jax.nn.sigmoid(show)
        logits = self.head(hidden).astype(jnp.float32)
        return jnp.concatenate([hidden, cell], axis=-1), logits
