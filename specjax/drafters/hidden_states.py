"""extract_hidden_states: a drafter that only listens.

It proposes nothing, so the text is plain decoding's; it writes down the target's tapped layers
at every committed token but the last, which the target has not read yet.
"""

import functools

import jax.numpy as jnp

from specjax.drafters.none import none
from specjax.types import Drafter


@functools.cache
def hidden_states(num_layers: int, hidden_size: int, dtype: str) -> Drafter:
    """Build the drafter; its state [B, T, A, D] holds text.lengths - 1 positions."""

    def init(params, batch_size, capacity):
        return jnp.zeros((batch_size, capacity, num_layers, hidden_size), dtype)

    def observe(params, state, text, seen, window):
        column = jnp.arange(seen.tokens.shape[1])[None]
        past_the_end = state.shape[1]
        goal = jnp.where(column < seen.count[:, None], seen.start[:, None] + column, past_the_end)
        rows = jnp.arange(state.shape[0])[:, None]
        return state.at[rows, goal].set(seen.taps, mode="drop")

    return none._replace(init=init, observe=observe, reads_hidden=True)
