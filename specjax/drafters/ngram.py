"""N-gram (prompt lookup, Saxena 2023): propose what followed the same tokens earlier in the row.

As vLLM does: for n from max to min, find the earliest place where the text's last n tokens occur
before, and propose the tokens after it; after a match no smaller n is tried.
"""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specjax.core.types import Drafter, Text
from specjax.drafters.none import chain, stateless


@functools.cache
def ngram(num_speculative_tokens: int, prompt_lookup_max: int, prompt_lookup_min: int) -> Drafter:
    """Return the drafter; it has no weights and no state.

    Args:
        num_speculative_tokens: K.
        prompt_lookup_max: the longest n-gram that is looked up.
        prompt_lookup_min: the shortest one.
    """
    depth = num_speculative_tokens

    def propose(params, state, text, sampling, keys, window):
        proposed, valid = lookup(text, depth, prompt_lookup_max, prompt_lookup_min)
        return chain(text, proposed, valid), state

    return stateless(propose, depth)


def lookup(
    text: Text, depth: int, longest: int, shortest: int
) -> tuple[Int[Array, "B K"], Bool[Array, "B K"]]:
    """Return the K tokens after the longest earlier match, and which of them exist.

    ``agree[b, e]`` counts how many tokens before place e equal the row's last ones, at most
    ``longest``. The largest count, and of equals the earliest place, is what vLLM's loop over n
    finds: a match of n tokens that could be longer is a longer match.
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
