"""vLLM's "extract_hidden_states": store hidden states of chosen layers, and draft nothing.

They are those of every committed token but the last, which the target has not read yet.
"""

import functools

import jax.numpy as jnp

from specjax.core.types import Drafter
from specjax.drafters.none import none


@functools.cache
def hidden_states(num_layers: int, hidden_size: int, dtype: str) -> Drafter:
    """Return the drafter; its state [B, T, A, D] holds hidden states of text.lengths - 1 tokens.

    Args:
        num_layers: A, how many layers the target taps.
        hidden_size: D.
        dtype: of the state.
    """

    def init(params, batch_size, capacity):
        return jnp.zeros((batch_size, capacity, num_layers, hidden_size), dtype)

    def observe(params, state, text, observation, window):
        column = jnp.arange(observation.tokens.shape[1])[None]
        past_the_end = state.shape[1]
        goal = jnp.where(
            column < observation.count[:, None], observation.start[:, None] + column, past_the_end
        )
        rows = jnp.arange(state.shape[0])[:, None]
        return state.at[rows, goal].set(observation.taps, mode="drop")

    return none._replace(init=init, observe=observe, reads_hidden=True)
