"""Synthetic acceptance, LOSSY: accept at given rates, whatever the tokens. For measuring costs.

vLLM's "synthetic": the i-th draft token is accepted with a given conditional rate, so a server
can be timed at an acceptance that no draft model at hand has. A refused token is recovered
from max(p - q, 0) as in ``rejection``.
"""

import functools
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax import sampling as s
from specjax.types import Draft, Rule, Text, Verdict
from specjax.verify.laws import on_laws
from specjax.verify.noise import Noise, by_token
from specjax.verify.rejection import settle


@functools.cache
def synthetic(rates: tuple[float, ...]) -> Rule:
    """Build the rule that accepts token i, if it comes to that, with probability ``rates[i]``."""

    def address(keys, text: Text, draft: Draft, sampling: s.Sampling, vocab_size: int) -> Noise:
        hot = sampling._replace(temperature=jnp.ones_like(sampling.temperature))
        return by_token(keys, text, draft, hot, vocab_size)  # greedy rows need it too

    def kernel(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
        rate = jnp.asarray(rates[:depth], jnp.float32)[None]
        return settle(noise.accept[:, 1:] < rate, noise, draft, target)

    return on_laws(kernel, address)


def to_conditional(unconditional: Sequence[float]) -> tuple[float, ...]:
    """Turn chances that the first i + 1 tokens are all accepted, which do not increase, into rates.

    The rate of token i is its chance once the tokens before it are accepted.
    """
    pairs = zip(unconditional, (1.0, *unconditional[:-1]), strict=True)
    return tuple(rate / before if before > 0 else 0.0 for rate, before in pairs)
