"""A drafter whose K follows the tokens that each request accepts.

Each row drafts one token more than it has accepted lately: K = round(average) + 1, as in SGLang's
adaptive K, which has one average for the batch. Tokens beyond that are drafted, and not verified.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.core.decode import limit_draft_depth
from specjax.core.topology import ancestors, depths
from specjax.core.types import Draft, Drafter, PyTree


class Adapted(NamedTuple):
    """The drafter's state, and what is known of each row's acceptance."""

    own: PyTree
    average: Float[Array, "B"]  # of the accepted tokens per draft
    drafted: Int[Array, "B"]  # how deep the present draft is
    seen: Int[Array, "B"]  # where the last observation that counted began


@functools.cache
def adaptive(drafter: Drafter, ema_alpha: float = 0.2) -> Drafter:
    """Return the drafter; its params are those of ``drafter``.

    K of a row depends on its own earlier rounds alone: so its text does not depend on the batch,
    and sampled drafts stay exact.

    Args:
        drafter: proposes; its K is the largest.
        ema_alpha: the weight of the last draft in a row's average.
    """

    def init(params, batch_size, capacity):
        nothing = jnp.zeros(batch_size, jnp.int32)
        start = jnp.full(batch_size, drafter.depth - 1, jnp.float32)
        return Adapted(drafter.init(params, batch_size, capacity), start, nothing, nothing)

    def propose(params, state: Adapted, text, sampling, keys, window):
        most = jnp.minimum(sampling.max_draft, next_depth(state.average, drafter.depth))
        limited = sampling._replace(max_draft=most)
        draft, own = drafter.propose(params, state.own, text, limited, keys, window)
        draft = limit_draft_depth(draft, limited)
        return draft, state._replace(own=own, drafted=depth_of(draft))

    def observe(params, state: Adapted, text, observation, window):
        own = drafter.observe(params, state.own, text, observation, window)
        count = (observation.count > 0) & (state.drafted > 0)
        count &= (observation.start >= text.starts) & (observation.start > state.seen)
        gain = ema_alpha * ((observation.count - 1).astype(jnp.float32) - state.average)
        return state._replace(
            own=own,
            average=jnp.where(count, state.average + gain, state.average),
            seen=jnp.where(count, observation.start, state.seen),
        )

    return drafter._replace(init=init, propose=propose, observe=observe)


def next_depth(average: Float[Array, "B"], depth: int) -> Int[Array, "B"]:
    """Return K of each row: one more than its average, rounded; 1 to ``depth``."""
    return jnp.clip(jnp.round(average).astype(jnp.int32) + 1, 1, depth)


def depth_of(draft: Draft) -> Int[Array, "B"]:
    """Return the depth of the deepest token of each row's draft; 0 where there is none."""
    level = depths(ancestors(draft.parents))
    return jnp.where(draft.valid, level, 0).max(axis=1).astype(jnp.int32)
