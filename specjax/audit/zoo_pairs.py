"""Broken pairs of a drafter and a rule: each half is right, and their joint use is not."""

import functools

import jax.numpy as jnp
import numpy as np

from specjax.core import sampling as s
from specjax.core.types import Drafter, Rule
from specjax.drafters.grow import pick
from specjax.drafters.none import chain, stateless
from specjax.theory.arrays import Value
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


def shared_noise_distribution(p: Value, q: Value) -> Value:
    """Return the distribution of ``recovered_with_draft_noise``'s first token, in closed form.

    A draft is the first of exponential numbers E / q, at time t: what is known of the others is
    E > q t, and beyond it they are exponential again. So the recovered token is the first of races
    that start at times c t, c = q / r with r = norm(max(p - q, 0)), and run at rate r, for a t that
    is exponential: P(x) = r(x) int_{c(x)} dw / (1 + sum_j r(j) max(w - c(j), 0))^2, a sum over the
    intervals between the sorted c. It needs no vocabulary small enough to be enumerated.

    Args:
        p: [V] of the target.
        q: [V] what the draft token is drawn from.
    """
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    residual, found = np.maximum(p - q, 0.0), np.minimum(p, q)
    rejected = residual.sum()
    runners = np.flatnonzero(residual)
    if not len(runners):
        return found
    r = residual[runners] / rejected
    order = np.argsort(q[runners] / r, kind="stable")
    runners, r = runners[order], r[order]
    start, rate = q[runners] / r, np.cumsum(r)
    level = 1.0 + np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(start))])
    interval = (1.0 / level - np.append(1.0 / level[1:], 0.0)) / rate
    found[runners] += rejected * r * np.cumsum(interval[::-1])[::-1]
    return found
