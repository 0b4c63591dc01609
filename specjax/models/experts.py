"""Mixtures of experts: a router chooses a few for each token, and only those are computed.

Routers differ in facts (``config.Experts``): scores by softmax (Mixtral, Qwen3-MoE, gpt-oss) or
sigmoid (DeepSeek-V3, arXiv:2412.19437; GLM-4.5), a bias that only chooses, groups, shared experts
with or without a gate (Qwen3-Next).

Several devices have a part of every expert each, or, with ``ModelConfig.expert_axes``, some of the
experts: then each computes its own for all tokens, and the results are added up (expert parallel).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, PartitionSpec
from jaxtyping import Array, Float, Int

from specjax.core import ops
from specjax.models.config import Experts, ModelConfig
from specjax.models.modules import MLP, Linear, noise

TINY = 1e-20  # is added to a sum of weights before it divides


class Stack(nnx.Module):
    """One matrix [out, in] per expert, and one bias where the architecture has them."""

    def __init__(
        self, count: int, size_in: int, size_out: int, *, bias: bool, dtype: str, rngs: nnx.Rngs
    ):
        self.weight = nnx.Param(noise(rngs(), (count, size_out, size_in), dtype, size_in))
        self.bias = nnx.Param(jnp.zeros((count, size_out), dtype)) if bias else None

    def arrays(self) -> tuple[Float[Array, "E O I"], Float[Array, "E O"] | None]:
        """Return the matrices and the biases."""
        return self.weight[...], None if self.bias is None else self.bias[...]


class Router(nnx.Module):
    """The gate: each token's experts and their weights, computed in float32."""

    def __init__(self, facts: Experts, size: int, *, dtype: str, rngs: nnx.Rngs):
        self.facts = facts
        count, wide = facts.n_routed_experts, jnp.float32
        self.weight = nnx.Param(noise(rngs(), (count, size), dtype, size))
        self.bias = nnx.Param(jnp.zeros(count, dtype)) if facts.router_bias else None
        correction = nnx.Param(jnp.zeros(count, wide)) if facts.correction_bias else None
        self.e_score_correction_bias = correction

    def __call__(
        self, x: Float[Array, "B N D"]
    ) -> tuple[Int[Array, "B N k"], Float[Array, "B N k"]]:
        """Return each token's experts, best first, and their weights in float32.

        Groups are ranked by the sum of their two best scores, and experts are taken from the best
        groups only. The correction bias is added for ranking, and is not part of the weights.
        """
        facts, wide = self.facts, jnp.float32
        bias = None if self.bias is None else self.bias[...].astype(wide)
        logits = ops.linear(x.astype(wide), self.weight[...].astype(wide), bias)
        scores = jax.nn.sigmoid(logits) if facts.scores == "sigmoid" else ops.softmax(logits)
        ranked = logits if facts.weigh_inputs else scores  # Llama 4's scores may be equal, at 1
        if self.e_score_correction_bias is not None:
            ranked = scores + self.e_score_correction_bias[...][None, None]
        if facts.topk_group < facts.n_group:
            ranked = within_best_groups(ranked, facts.n_group, facts.topk_group)
        chosen = jax.lax.top_k(ranked, facts.num_experts_per_tok)[1]
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
        if facts.norm_topk_prob:
            weights = weights / (ops.row_sums(weights)[..., None] + TINY)
        return chosen, weights * facts.routed_scaling_factor


def within_best_groups(
    scores: Float[Array, "B N E"], groups: int, count: int
) -> Float[Array, "B N E"]:
    """Return scores that are -inf outside the ``count`` groups with the best two experts."""
    grouped = scores.reshape(*scores.shape[:2], groups, -1)
    best = jax.lax.top_k(grouped, 2)[0].sum(axis=-1)
    open_to = jax.nn.one_hot(jax.lax.top_k(best, count)[1], groups, dtype=bool).any(axis=-2)
    return jnp.where(open_to[..., None], grouped, -jnp.inf).reshape(scores.shape)


class Bank(nnx.Module):
    """The routed experts: gated MLPs, one stack per matrix."""

    def __init__(self, config: ModelConfig, facts: Experts, *, rngs: nnx.Rngs):
        count, wide, size = facts.n_routed_experts, facts.moe_intermediate_size, config.hidden_size
        self.activation, self.axes = config.mlp, config.expert_axes
        options = {"bias": facts.bias, "dtype": config.dtype, "rngs": rngs}
        self.gate_proj = Stack(count, size, wide, **options)
        self.up_proj = Stack(count, size, wide, **options)
        self.down_proj = Stack(count, wide, size, **options)

    def __call__(
        self, x: Float[Array, "B N D"], chosen: Int[Array, "B N k"], weights: Float[Array, "B N k"]
    ) -> Float[Array, "B N D"]:
        """Return the weighted sum of each token's experts' outputs."""
        stacks = (self.gate_proj.arrays(), self.up_proj.arrays(), self.down_proj.arrays())
        if not self.axes:
            return ops.experts(x, chosen, weights, *stacks, activation=self.activation)
        names, sizes = zip(*self.axes, strict=True)

        def add_up(x: jax.Array, chosen: jax.Array, weights: jax.Array, *own: Any) -> jax.Array:
            first = jax.lax.axis_index(names) * own[0][0].shape[0]
            inputs = x, chosen - first, weights, *own
            part = ops.experts(*inputs, activation=self.activation, partial=True)
            return jax.lax.psum(part, names).astype(x.dtype)

        everywhere, dealt = PartitionSpec(), PartitionSpec(names)
        specs = (*(everywhere,) * 3, *(dealt,) * 3)
        split = jax.shard_map(
            add_up, mesh=AbstractMesh(sizes, names), in_specs=specs, out_specs=everywhere,
            check_vma=False,
        )  # fmt: skip
        return split(x, chosen, weights, *stacks)


class Mixture(nnx.Module):
    """Routed experts, and the shared ones if there are: one MLP as wide as all of them."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        facts = config.experts
        assert facts is not None
        self.gate = Router(facts, config.hidden_size, dtype=config.dtype, rngs=rngs)
        self.experts, self.weigh_inputs = Bank(config, facts, rngs=rngs), facts.weigh_inputs
        wide = facts.shared_size or facts.n_shared_experts * facts.moe_intermediate_size
        self.shared_experts = MLP(config, rngs=rngs, wide=wide) if facts.n_shared_experts else None
        gate = {"bias": False, "dtype": config.dtype, "rngs": rngs}
        self.shared_expert_gate = (
            Linear(config.hidden_size, 1, **gate) if facts.shared_gate else None
        )

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Return the layer's output."""
        chosen, weights = self.gate(x)
        if self.weigh_inputs:
            y = self.of_weighted(x, chosen, weights)
        else:
            y = self.experts(x, chosen, weights)
        if self.shared_experts is None:
            return y
        shared = self.shared_experts(x)
        if self.shared_expert_gate is not None:
            shared = shared * jax.nn.sigmoid(self.shared_expert_gate(x))
        return y + shared

    def of_weighted(
        self, x: Float[Array, "B N D"], chosen: Int[Array, "B N k"], weights: Float[Array, "B N k"]
    ) -> Float[Array, "B N D"]:
        """Return the sum of each token's experts' outputs of its input times their weights."""
        batch, nodes, count = chosen.shape
        inputs = (x[:, :, None] * weights[..., None].astype(x.dtype)).reshape(batch, -1, x.shape[2])
        once = jnp.ones((batch, nodes * count, 1), weights.dtype)
        each = self.experts(inputs, chosen.reshape(batch, -1, 1), once)
        return each.reshape(batch, nodes, count, -1).sum(axis=2)
