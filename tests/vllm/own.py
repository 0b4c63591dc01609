"""A drafter of a user's own, as ``test_proposer`` names it: the last token again and again."""

import jax.numpy as jnp

from specjax.core.types import Drafter
from specjax.drafters.ngram import ngram as by_ngrams
from specjax.drafters.none import chain, stateless


def repeat(target, *, num_speculative_tokens: int) -> Drafter:
    """Return the drafter."""

    def propose(params, state, text, sampling, keys, window):
        last = jnp.take_along_axis(text.tokens, text.lengths[:, None] - 1, axis=1)
        proposed = jnp.repeat(last, num_speculative_tokens, axis=1)
        return chain(text, proposed, jnp.ones_like(proposed, dtype=bool)), state

    return stateless(propose, num_speculative_tokens)


def reads_hidden(target, *, num_speculative_tokens: int) -> Drafter:
    """Return a drafter that needs what vLLM does not give."""
    return repeat(target, num_speculative_tokens=num_speculative_tokens)._replace(taps=(1,))


def runs_the_target(target, *, num_speculative_tokens: int) -> Drafter:
    """Return a drafter whose functions call the target."""

    def propose(params, state, text, sampling, keys, window):
        return target.logits(params, text.tokens), state

    return stateless(propose, num_speculative_tokens)


def ngram(target, *, num_speculative_tokens: int) -> Drafter:
    """Return vLLM's n-gram drafter as a user's own."""
    return by_ngrams(num_speculative_tokens, 3, 1)
