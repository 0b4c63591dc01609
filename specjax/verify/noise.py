"""Random numbers of the rules that compare probabilities, and what they depend on.

Each drafted token has a uniform number, compared with p / q, and each node V exponential numbers,
from which the recovered or bonus token is sampled (``argmax(p / exponential)``, as in vLLM). No
number may decide in two rounds. ``by_token`` makes a key of the index of the token that a number
decides, for rules that use no uniform past their first rejection; ``by_round`` makes the uniforms'
key of the round's first index, for rules that use those of siblings or past a rejection.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from specjax.core import sampling as s
from specjax.core.topology import ancestors, depths
from specjax.core.types import Draft, Sampling, Text

# Stands for exponential numbers of 0, which other generators of float32 return instead of those
# below 2^-23 (ours never do), and is their mean. A smaller one would make the token win whatever
# its probability: 1.8% of all tokens at V = 151,936.
TINY = 2.0**-24


class Noise(NamedTuple):
    """The random numbers of one round, independent of each other and of the drafter's."""

    accept: Float[Array, "B N"]  # uniform; of the drafted token at each node
    recover: Float[Array, "B N V"]  # exponential; of the token after each node


def by_token(
    keys: Key[Array, "B"], text: Text, draft: Draft, sampling: Sampling, vocab_size: int
) -> Noise:
    """Return noise whose keys are the indices of the tokens decided (``types.DrawNoise``)."""
    positions, hot = decided_positions(text, draft), jnp.any(sampling.temperature > 0)
    accept = s.draw(jax.random.uniform, s.noise_keys(keys, positions - 1, s.ACCEPT), 1, hot)
    return Noise(accept[:, :, 0], exponential_noise(keys, positions, vocab_size, hot))


def by_round(
    keys: Key[Array, "B"], text: Text, draft: Draft, sampling: Sampling, vocab_size: int
) -> Noise:
    """Return noise whose uniforms have the text's length as their key (``types.DrawNoise``)."""
    positions, hot = decided_positions(text, draft), jnp.any(sampling.temperature > 0)
    start = s.noise_keys(keys, text.lengths[:, None], s.ACCEPT)
    accept = s.draw(jax.random.uniform, start, draft.tokens.shape[1], hot)
    return Noise(accept[:, 0], exponential_noise(keys, positions, vocab_size, hot))


def decided_positions(text: Text, draft: Draft) -> Int[Array, "B N"]:
    """Return the index in the text of the token after each node."""
    return text.lengths[:, None] + depths(ancestors(draft.parents))


def exponential_noise(
    keys: Key[Array, "B"], positions: Int[Array, "B N"], vocab_size: int, wanted: Bool[Array, ""]
) -> Float[Array, "B N V"]:
    """Return exponential numbers for the token after each node, zeros if not ``wanted``.

    Nodes at one depth share them: at most one of these tokens is sampled.
    """
    return s.draw(s.exponential, s.noise_keys(keys, positions, s.RECOVER), vocab_size, wanted)


def exponential_race(
    weights: Float[Array, "B V"], noise: Noise, node: Int[Array, "B"]
) -> Int[Array, "B"]:
    """Sample a token after ``node`` in proportion to its weight: argmax(weight / exponential)."""
    waiting = jnp.take_along_axis(noise.recover, node[:, None, None], axis=1)[:, 0]
    return s.argmax(weights / jnp.maximum(waiting, TINY))
