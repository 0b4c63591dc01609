"""Broken pairs of a drafter and a rule: each half is right, and their joint use is not."""

import functools

import jax.numpy as jnp

from specjax.core import sampling as s
from specjax.core.types import Drafter, Rule
from specjax.drafters.grow import pick
from specjax.drafters.none import chain, stateless
from specjax.verify import noise as v
from specjax.verify.rejection import rejection


@functools.cache
def recovered_with_draft_noise() -> Rule:
    """Return ``rejection`` with recovered tokens drawn from the noise that drew the drafts."""

    def draw_noise(keys, text, draft, sampling, vocab_size):
        own = v.by_token(keys, text, draft, sampling, vocab_size)
        keys = s.noise_keys(keys, text.lengths[:, None], s.PROPOSE)[:, 0]
        drafted = s.gumbel(keys, v.decided_positions(text, draft), s.PROPOSE, sampling, vocab_size)
        return own._replace(recover=jnp.exp(-drafted))

    return Rule(draw_noise, rejection.verify)


@functools.cache
def drafted_by_token_index(num_speculative_tokens: int) -> Drafter:
    """Return a drafter whose noise is named by the token's index alone, not by the round."""
    depth = num_speculative_tokens

    def propose(params, state, text, sampling, keys, window):
        token = jnp.take_along_axis(text.tokens, text.lengths[:, None] - 1, axis=1)
        tokens, probs = [], [jnp.zeros((*token.shape, params.shape[-1]))]
        for level in range(depth):
            logits = params[token]
            token, q = pick(
                logits, token[:, :, None], level, text, sampling, keys, "probabilistic", 1
            )
            assert q is not None
            token = token[:, :, 0]
            tokens.append(token)
            probs.append(q)
        drafted = jnp.concatenate(tokens, axis=1)
        valid = jnp.ones(drafted.shape, bool)
        return chain(text, drafted, valid, jnp.concatenate(probs, axis=1)), state

    return stateless(propose, depth)
