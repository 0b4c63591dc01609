"""Medusa and the MLP speculator: K stages on the target's last hidden state, without a cache.

A stage reads a token and returns the logits of the next one. The MLP speculator is recurrent
(Wertheimer et al. 2024, arXiv:2404.19124); Medusa's heads depend neither on each other nor on the
drafted tokens (Cai et al. 2024, arXiv:2401.10774): they run together, so that an LM head that they
share is read once, and the tree is the product of their best tokens.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.core.types import Drafter, Stages
from specjax.drafters.grow import grow, unrolled_scan
from specjax.drafters.tree import Tree, chain_of


class StageOutput(NamedTuple):
    """The outputs of a stage at each node."""

    carry: Float[Array, "B W C"]
    logits: Float[Array, "B W V"]


@functools.cache
def staged(
    stages: Stages,
    tree: Tree | int,
    draft_sample_method: str = "greedy",
    max_model_len: int = 2**30,
) -> Drafter:
    """Return the drafter; its state [B, D] is the target's hidden state before the last token.

    Args:
        stages: Medusa's heads or an MLP speculator; their weights are the drafter's ``params``.
        tree: the shape of drafts; a number K is a chain of K tokens.
        draft_sample_method: "greedy", "coupled" or "probabilistic" (``drafters.grow``).
        max_model_len: nothing is proposed past it.
    """
    tree = chain_of(tree)

    def init(params, batch_size, capacity):
        return jnp.zeros((batch_size, stages.hidden_size), stages.dtype)

    def propose(params, state, text, sampling, keys, window):
        start = stages.start(params, state)
        known = None if stages.at_once is None else stages.at_once(params, start, tree.depth)

        def run_stage(carry, tokens, level):
            """Run one stage on every node: [B, W, C] and [B, W]."""
            if known is not None:  # the same at every node of a level
                logits = jnp.broadcast_to(known[:, level, None], (*tokens.shape, known.shape[-1]))
                return StageOutput(carry, logits)
            flat = carry.reshape(-1, carry.shape[-1])
            found = stages.step(params, flat, tokens.reshape(-1), level)
            return StageOutput(*jax.tree.map(lambda leaf: leaf.reshape(*tokens.shape, -1), found))

        def read(carry, frontier, level):
            return carry, run_stage(frontier.before.carry, frontier.tokens, level)

        last = jnp.take_along_axis(text.tokens, text.lengths[:, None] - 1, axis=1)
        root = run_stage(start[:, None], last, 0)
        draft, _ = grow(
            tree, (), root, read, lambda output: output.logits,
            text, sampling, keys, draft_sample_method, max_model_len, unrolled_scan,
        )  # fmt: skip
        return draft, state

    def observe(params, state, text, observation, window):
        return last_observed(observation.hidden, observation.count, state)

    return Drafter(init, propose, observe, tree.depth, tree.num_nodes + 1, reads_hidden=True)


def last_observed(
    observed: Float[Array, "B P D"], count: Int[Array, "B"], before: Float[Array, "B D"]
) -> Float[Array, "B D"]:
    """Return entry ``count - 1`` of each row of ``observed``, or ``before`` where count is 0."""
    index = jnp.maximum(count - 1, 0)[:, None, None]
    last = jnp.take_along_axis(observed, index, axis=1)[:, 0]
    return jnp.where((count > 0)[:, None], last, before)
