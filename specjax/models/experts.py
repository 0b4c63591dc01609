"""DeepSeek-V3's mixture of experts (arXiv:2412.19437): sigmoid scores, groups, shared experts.

Every expert reads every token, and the weight of those a token did not choose is zero: shapes
are static and no row's result depends on the others in its batch, for the price of
``n_routed_experts / num_experts_per_tok`` times the products.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from specjax import ops
from specjax.config import Experts, ModelConfig
from specjax.models.parts import MLP, noise


class Stack(nnx.Module):
    """One matrix [out, in] per expert."""

    def __init__(self, count: int, size_in: int, size_out: int, *, dtype: str, rngs: nnx.Rngs):
        shape = count, size_out, size_in
        self.weight = nnx.Param(noise(rngs(), shape, dtype, size_in))


class Router(nnx.Module):
    """Choose each token's experts, by scores that a bias keeps balanced."""

    def __init__(self, facts: Experts, size: int, *, dtype: str, rngs: nnx.Rngs):
        self.facts = facts
        shape = facts.n_routed_experts, size
        self.weight = nnx.Param(noise(rngs(), shape, dtype, size))
        self.e_score_correction_bias = nnx.Param(jnp.zeros(shape[0], jnp.float32))

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N E"]:
        """Return every expert's weight, in float32: zero where a token did not choose it.

        A group counts by its two best experts, and only the best groups are open. The bias
        decides who is chosen, never how much it weighs.
        """
        facts = self.facts
        wide = jnp.float32
        scores = jax.nn.sigmoid(ops.linear(x.astype(wide), self.weight[...].astype(wide)))
        biased = scores + self.e_score_correction_bias[...][None, None]
        groups = biased.reshape(*x.shape[:2], facts.n_group, -1)
        best = jax.lax.top_k(groups, 2)[0].sum(axis=-1)
        closed = ~largest(best, facts.topk_group)[..., None]
        open_to = jnp.where(closed, -jnp.inf, groups).reshape(scores.shape)
        weights = jnp.where(largest(open_to, facts.num_experts_per_tok), scores, 0.0)
        if facts.norm_topk_prob:
            weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
        return weights * facts.routed_scaling_factor


def largest(scores: Float[Array, "*lead E"], count: int) -> Bool[Array, "*lead E"]:
    """Mark the ``count`` largest, the first of equals."""
    chosen = jax.lax.top_k(scores, count)[1]
    return jax.nn.one_hot(chosen, scores.shape[-1], dtype=bool).any(axis=-2)


class Bank(nnx.Module):
    """The routed experts' matrices."""

    def __init__(self, facts: Experts, size: int, *, dtype: str, rngs: nnx.Rngs):
        count, wide = facts.n_routed_experts, facts.moe_intermediate_size
        self.gate_proj = Stack(count, size, wide, dtype=dtype, rngs=rngs)
        self.up_proj = Stack(count, size, wide, dtype=dtype, rngs=rngs)
        self.down_proj = Stack(count, wide, size, dtype=dtype, rngs=rngs)

    def __call__(
        self, x: Float[Array, "B N D"], weights: Float[Array, "B N E"]
    ) -> Float[Array, "B N D"]:
        gate = jnp.einsum("bnd,efd->bnef", x, self.gate_proj.weight[...])
        up = jnp.einsum("bnd,efd->bnef", x, self.up_proj.weight[...])
        each = ops.swiglu(gate, up) * weights[..., None].astype(x.dtype)
        return jnp.einsum("bnef,edf->bnd", each, self.down_proj.weight[...])


class Mixture(nnx.Module):
    """Routed experts, and shared ones that read every token: one MLP as wide as all of them."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        facts = config.experts
        assert facts is not None
        self.gate = Router(facts, config.hidden_size, dtype=config.dtype, rngs=rngs)
        self.experts = Bank(facts, config.hidden_size, dtype=config.dtype, rngs=rngs)
        wide = facts.n_shared_experts * facts.moe_intermediate_size
        self.shared_experts = MLP(config, rngs=rngs, wide=wide)

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return self.experts(x, self.gate(x)) + self.shared_experts(x)
