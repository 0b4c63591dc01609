"""The noise of the ratio rules, and how it is addressed.

Every drafted token has a uniform that decides its acceptance, and every node a race of
exponential clocks that decides what follows it if the rule stops there. No number that
decided one round may decide another: ``by_token`` names each by the index of the token it
decides, for rules that look at no uniform past their first refusal; ``by_round`` names the
uniforms by the round, for rules that look at siblings or past a refusal.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax import sampling as s
from specjax.topology import ancestors, depths
from specjax.types import Draft, Text

# Others' draws of float32 (ours are never 0) come out as 0 below 2^-23; this is their mean then. A
# smaller stand-in would let the token win whatever its weight: 1.8% of all tokens at V = 151,936.
TINY = 2.0**-24


class Noise(NamedTuple):
    """Two separate streams; neither is the drafter's."""

    accept: Float[Array, "B N"]  # uniform; of the drafted token at each node
    recover: Float[Array, "B N V"]  # exponential; of the token after each node


def by_token(keys, text: Text, draft: Draft, sampling: s.Sampling, vocab_size: int) -> Noise:
    """Draw each node's own acceptance, and what would follow it, by token index."""
    positions, hot = decides(text, draft), jnp.any(sampling.temperature > 0)
    accept = s.draw(jax.random.uniform, s.address(keys, positions - 1, s.ACCEPT), 1, hot)
    return Noise(accept[:, :, 0], clocks(keys, positions, vocab_size, hot))


def by_round(keys, text: Text, draft: Draft, sampling: s.Sampling, vocab_size: int) -> Noise:
    """Draw the acceptances of a whole round by the length it starts at."""
    positions, hot = decides(text, draft), jnp.any(sampling.temperature > 0)
    start = s.address(keys, text.lengths[:, None], s.ACCEPT)
    accept = s.draw(jax.random.uniform, start, draft.tokens.shape[1], hot)
    return Noise(accept[:, 0], clocks(keys, positions, vocab_size, hot))


def decides(text: Text, draft: Draft) -> Int[Array, "B N"]:
    """Return the index of the token that follows each node."""
    return text.lengths[:, None] + depths(ancestors(draft.parents))


def clocks(keys, positions: Int[Array, "B N"], vocab_size: int, hot) -> Float[Array, "B N V"]:
    """Draw every node's clocks; nodes at one depth share them, for at most one race is run."""
    return s.draw(s.exponential, s.address(keys, positions, s.RECOVER), vocab_size, hot)


def race(weights: Float[Array, "B V"], noise: Noise, node: Int[Array, "B"]) -> Int[Array, "B"]:
    """Sample a token in proportion to its weight: of clocks at these rates, the first to ring."""
    waiting = jnp.take_along_axis(noise.recover, node[:, None, None], axis=1)[:, 0]
    return s.likeliest(weights / jnp.maximum(waiting, TINY))
