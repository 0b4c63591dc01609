"""Synthetic acceptance, LOSSY: accept at given rates, whatever the tokens. For measuring costs.

vLLM's "synthetic": the i-th draft token is accepted with a given conditional rate, so that a
server can be timed at the acceptance of a draft model that one does not have. At a rejection a
token is sampled from max(p - q, 0) as in ``rejection``.
"""

import functools
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from specjax.core.types import Draft, Rule, Sampling, Text, Verdict
from specjax.verify.noise import Noise, by_token
from specjax.verify.probs_rule import ProbsKernel, probs_rule
from specjax.verify.rejection import accept_prefix


@functools.cache
def synthetic(rates: tuple[float, ...]) -> Rule:
    """Return the rule that accepts token i, if those before it were, with probability rates[i]."""

    def draw_noise(
        keys: Key[Array, "B"], text: Text, draft: Draft, sampling: Sampling, vocab_size: int
    ) -> Noise:
        hot = sampling._replace(temperature=jnp.ones_like(sampling.temperature))
        return by_token(keys, text, draft, hot, vocab_size)  # greedy rows need it too

    return probs_rule(accept_by_rate(rates), draw_noise)


@functools.cache
def accept_by_rate(rates: tuple[float, ...]) -> ProbsKernel:
    """Return the kernel that accepts token i with probability rates[i]."""

    def kernel(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
        rate = jnp.asarray(rates[:depth], jnp.float32)[None]
        return accept_prefix(noise.accept[:, 1:] < rate, noise, draft, target)

    return kernel


def to_conditional(unconditional: Sequence[float]) -> tuple[float, ...]:
    """Return each token's acceptance rate given that those before it are accepted.

    Args:
        unconditional: at i, the probability that tokens 0 .. i are all accepted; not increasing.

    >>> to_conditional([0.8, 0.4, 0.0])
    (0.8, 0.5, 0.0)
    """
    pairs = zip(unconditional, (1.0, *unconditional[:-1]), strict=True)
    return tuple(rate / before if before > 0 else 0.0 for rate, before in pairs)
