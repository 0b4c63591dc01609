"""The same algorithm in plain Python: lists, one row, one token at a time.

What ``simulate.chain`` computes for thousands of rows at once, number for number: noise from the
same addresses through the same hash, the same laws, the same comparisons. So it writes the same
text, which makes it a second implementation to test the first by, and a fair peer to time. It is
lazy where a batch cannot be: it draws only the noise and the laws that a round comes to need.
"""

import math
import random
from collections.abc import Callable, Sequence

from specjax.sampling import ACCEPT, PROPOSE, RECOVER
from specjax.simulate.noise import FIRST, GOLDEN, SECOND, SPREAD

MASK = 2**32 - 1
FLOAT = 2.0**-23  # float32 noise has 23 random bits
TINY = 2.0**-24
LEAST = 2.0**-126
Words = tuple[int, int]


def mix(x: int) -> int:
    """Avalanche a word, as ``simulate.noise.mix``."""
    x = ((x ^ (x >> 16)) * FIRST) & MASK
    x = ((x ^ (x >> 15)) * SECOND) & MASK
    return x ^ (x >> 15)


def fold_in(words: Words, data: int) -> Words:
    """Derive the key of an address."""
    first = mix(words[0] ^ mix((data + GOLDEN) & MASK))
    return first, mix((words[1] + first) & MASK)


def addressed(words: Words) -> Callable[[int, int, int], list[float]]:
    """Return the row's noise: (position, stream, size) -> uniform numbers."""

    def uniform(position: int, stream: int, size: int) -> list[float]:
        a, b = fold_in(fold_in(words, position), stream)
        return [(mix(mix((i * SPREAD + a) & MASK) ^ b) >> 9) * FLOAT for i in range(size)]

    return uniform


def unaddressed(seed: int) -> Callable[[int, int, int], list[float]]:
    """Return noise of Python's own generator: cheaper, and another text."""
    draw = random.Random(seed).random
    return lambda position, stream, size: [draw() for _ in range(size)]


def plain_chain(
    target: Sequence[Sequence[float]],
    draft: Sequence[Sequence[float]],
    uniform: Callable[[int, int, int], list[float]],
    temperature: float,
    num_speculative_tokens: int,
    num_rounds: int,
) -> list[int]:
    """Write tokens after token 0 by rejection sampling; return the text, token 0 included."""
    size = len(target)
    text = [0]
    p = softmax(target[0], temperature)
    text.append(race(p, uniform(1, RECOVER, size)))
    for _ in range(num_rounds):
        start, node = len(text), text[-1]
        drafted, laws = [], []
        for level in range(num_speculative_tokens):
            logits = draft[node]
            noise = gumbel(uniform(start + level, PROPOSE, 2 * size))
            scores = [x + temperature * g for x, g in zip(logits, noise, strict=True)]
            laws.append(softmax(logits, temperature))
            node = scores.index(max(scores))
            drafted.append(node)
        node = text[-1]
        for level, token in enumerate(drafted):
            p, q = softmax(target[node], temperature), laws[level]
            (u,) = uniform(start + level, ACCEPT, 1)
            if u * q[token] >= p[token]:
                p = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
                break
            node = token
            text.append(token)
        else:
            p = softmax(target[node], temperature)
        text.append(race(p, uniform(len(text), RECOVER, size)))
    return text


def softmax(logits: Sequence[float], temperature: float) -> list[float]:
    """Return softmax(logits / T)."""
    top = max(logits)
    weights = [math.exp((x - top) / temperature) for x in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def gumbel(u: list[float]) -> list[float]:
    """Return Gumbel noise of two uniform numbers each, as JAX's "high" mode."""
    half = len(u) // 2
    joined = [
        high if high >= 0.5 else high + FLOAT * low + LEAST
        for high, low in zip(u[:half], u[half:], strict=True)
    ]
    return [-math.log(-math.log1p(-x)) for x in joined]


def race(weights: list[float], u: list[float]) -> int:
    """Return the token whose exponential clock rings first: a sample of the weights."""
    speeds = [w / max(-math.log1p(-x), TINY) for w, x in zip(weights, u, strict=True)]
    return speeds.index(max(speeds))
