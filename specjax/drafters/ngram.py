"""N-gram (prompt lookup): propose what followed the same words earlier in the row.

Saxena 2023; vLLM's rule: for lengths max..min, the first place in the text where its last
n tokens occur before; the earliest wins, and there is no shorter try after a match.
"""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specjax.drafters.none import chain
from specjax.types import Drafter, Text


@functools.cache
def ngram(num_speculative_tokens: int, prompt_lookup_max: int, prompt_lookup_min: int) -> Drafter:
    """Build the drafter: K proposals after a match of min to max tokens."""
    depth = num_speculative_tokens

    def propose(params, state, text, sampling, keys, window):
        proposed, valid = lookup(text, depth, prompt_lookup_max, prompt_lookup_min)
        return chain(text, proposed, valid), state

    return Drafter(
        init=lambda params, batch_size, capacity: (),
        propose=propose,
        observe=lambda params, state, text, seen, window: state,
        depth=depth,
        nodes=depth + 1,
    )


def lookup(
    text: Text, depth: int, longest: int, shortest: int
) -> tuple[Int[Array, "B K"], Bool[Array, "B K"]]:
    """Return the tokens after the best earlier match, and which of them exist.

    ``agree[b, e]`` counts how many tokens before place e equal the row's last ones, at most
    ``longest``. The greatest count wins, and among equals the earliest place: that is vLLM's
    loop over lengths, since a match of n tokens that could be longer is a longer match.
    """
    capacity = text.tokens.shape[1]
    place, length = jnp.arange(capacity)[None], text.lengths[:, None]
    agree, alive = jnp.zeros(text.tokens.shape, jnp.int32), place < length
    for back in range(1, longest + 1):
        last = jnp.take_along_axis(text.tokens, jnp.maximum(length - back, 0), axis=1)
        alive &= (place >= back) & (jnp.roll(text.tokens, back, axis=1) == last)
        agree += alive
    best = agree.max(axis=1, keepdims=True)
    end = jnp.argmax(agree, axis=1)[:, None]
    index = end + jnp.arange(depth)[None]
    valid = (best >= shortest) & (index < length)
    return jnp.take_along_axis(text.tokens, jnp.minimum(index, capacity - 1), axis=1), valid
