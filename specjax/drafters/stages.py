"""Medusa and the MLP speculator: K stages on the target's last hidden state, no cache.

A stage takes in a token and scores the next one. The MLP speculator's are recurrent
(Wertheimer et al. 2024, arXiv:2404.19124); Medusa's know neither each other nor the tokens
between (Cai et al. 2024, arXiv:2401.10774), so that a tree is a product of their best tokens.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.drafters.grow import grow, unrolled
from specjax.drafters.tree import Tree, chain_of
from specjax.types import Drafter, Stages


class Known(NamedTuple):
    """What a stage leaves behind at each node."""

    carry: Float[Array, "B W C"]
    logits: Float[Array, "B W V"]


@functools.cache
def staged(
    stages: Stages,
    tree: Tree | int,
    draft_sample_method: str = "greedy",
    max_model_len: int = 2**30,
) -> Drafter:
    """Build the drafter; its state [B, D] is the hidden state before the last token."""
    tree = chain_of(tree)

    def init(params, batch_size, capacity):
        return jnp.zeros((batch_size, stages.hidden_size), stages.dtype)

    def propose(params, state, text, sampling, keys, window):
        def take_in(carry, tokens, level):
            """Run one stage on every node: [B, W, C] and [B, W]."""
            flat = carry.reshape(-1, carry.shape[-1])
            found = stages.step(params, flat, tokens.reshape(-1), level)
            return Known(*jax.tree.map(lambda leaf: leaf.reshape(*tokens.shape, -1), found))

        def read(carry, front, level):
            return carry, take_in(front.before.carry, front.tokens, level)

        last = jnp.take_along_axis(text.tokens, text.lengths[:, None] - 1, axis=1)
        root = take_in(stages.start(params, state)[:, None], last, 0)
        draft, _ = grow(
            tree, (), root, read, lambda known: known.logits,
            text, sampling, keys, draft_sample_method, max_model_len, unrolled,
        )  # fmt: skip
        return draft, state

    def observe(params, state, text, seen, window):
        return last_of(seen.hidden, seen.count, state)

    return Drafter(init, propose, observe, tree.depth, tree.num_nodes + 1, reads_hidden=True)


def last_of(
    seen: Float[Array, "B P D"], count: Int[Array, "B"], before: Float[Array, "B D"]
) -> Float[Array, "B D"]:
    """Return the last real one of what was seen, or what was there before if none is."""
    index = jnp.maximum(count - 1, 0)[:, None, None]
    last = jnp.take_along_axis(seen, index, axis=1)[:, 0]
    return jnp.where((count > 0)[:, None], last, before)
