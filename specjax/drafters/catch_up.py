"""A draft model that rests while K is 0, and reads what it has missed before it drafts again.

Plain decoding then costs no pass of the draft model. What it reads later are the same tokens at the
same positions, several at a time, as it reads a prompt: its cache, and so its drafts, are those of
one that never rested.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from specjax.core.types import RUNNING, Drafter, Observation, PyTree
from specjax.drafters.none import propose as propose_nothing


class Resting(NamedTuple):
    """The drafter's state, and how many of a row's committed tokens it has read."""

    own: PyTree
    num_read: Int[Array, "B"]


@functools.cache
def catch_up(drafter: Drafter) -> Drafter:
    """Return the drafter whose state may be behind the text: ``propose`` first reads the rest.

    Args:
        drafter: reads tokens alone (not ``reads_hidden``), as a draft model does; where nothing was
            missed, nothing more is computed.
    """
    wide = drafter.depth  # tokens per pass: as many as a round brings, so no further slots

    def init(params, batch_size, capacity):
        nothing = jnp.zeros(batch_size, jnp.int32)
        return Resting(drafter.init(params, batch_size, capacity), nothing)

    def propose(params, state: Resting, text, sampling, keys, window):
        def missing(state: Resting):
            return jnp.where(text.reason == RUNNING, text.lengths - state.num_read, 0)

        def read(state: Resting):
            count = jnp.clip(missing(state), 0, wide)
            start = jnp.maximum(state.num_read - 1, 0)
            size = count.shape[0]
            nothing = jnp.zeros((size, wide, 0), jnp.float32)
            tokens = jnp.zeros((size, wide), jnp.int32)  # it reads those of the text
            seen = Observation(tokens, nothing, nothing[:, :, None], start, count)
            own = drafter.observe(params, state.own, text, seen, window)
            return Resting(own, state.num_read + count)

        state = lax.while_loop(lambda each: (missing(each) > 0).any(), read, state)
        draft, own = drafter.propose(params, state.own, text, sampling, keys, window)
        return draft, state._replace(own=own)

    def observe(params, state: Resting, text, observation, window):
        own = drafter.observe(params, state.own, text, observation, window)
        after = observation.start + observation.count + 1
        return Resting(own, jnp.where(observation.count > 0, after, state.num_read))

    return drafter._replace(init=init, propose=propose, observe=observe)


@functools.cache
def rest(drafter: Drafter) -> Drafter:
    """Return ``catch_up``'s drafter for K = 0: it proposes nothing, and reads nothing."""

    def observe(params, state: Resting, text, observation, window):
        return state

    return drafter._replace(propose=propose_nothing, observe=observe, depth=0, nodes=1)
