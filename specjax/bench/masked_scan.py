"""Drafting from earlier responses by comparing all of them with every new token.

The match that ends at position j of the past has the length of the one that ended at j - 1 plus one
if the past's token j is the new token, else 0. The most frequent token after the longest matches is
drafted, and the positions that contain it are extended. Every new token reads the whole past, for
every row of a batch, which is why ``drafters.suffix_index`` is a trie instead; ``specjax bench
drafters`` times both. This drafter is minimal: it uses the longest matches only.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specjax.bench.drafter_plan import DEPTH


@jax.jit
def appended(
    lengths: Int[Array, "batch past"], past: Int[Array, "past"], token: Int[Array, "batch"]
) -> Int[Array, "batch past"]:
    """Return the match length that ends at each position, after one more token of each row."""
    before = jnp.pad(lengths[:, :-1], ((0, 0), (1, 0)))
    return jnp.where(past[None] == token[:, None], jnp.minimum(before + 1, DEPTH), 0)


@functools.partial(jax.jit, static_argnames="vocab_size")
def proposed(
    lengths: Int[Array, "batch past"], past: Int[Array, "past"], *, vocab_size: int
) -> Int[Array, "batch drafted"]:
    """Return ``DEPTH`` draft tokens for each row: the most frequent ones after the longest matches.

    ``lengths``: of the match that ends at each position of the past.
    """
    longest = lengths.max(1, keepdims=True)
    rows, following = jnp.arange(lengths.shape[0])[:, None], jnp.append(past[1:], vocab_size)

    def one(places, _):
        counts = jnp.zeros((lengths.shape[0], vocab_size), jnp.int32)
        counts = counts.at[rows, following[None]].add(places.astype(jnp.int32), mode="drop")
        token = counts.argmax(1)
        places = jnp.pad((places & (following[None] == token[:, None]))[:, :-1], ((0, 0), (1, 0)))
        return places, token

    return jax.lax.scan(one, (lengths == longest) & (longest > 0), length=DEPTH)[1].T


def time_scan(past: np.ndarray, batch: int, reps: int) -> tuple[float, float]:
    """Return the milliseconds of appending a token to each row, and of a proposal."""
    text, vocab_size = jnp.asarray(past), int(past.max()) + 1
    lengths = jnp.zeros((batch, len(past)), jnp.int32)
    took: list[tuple[float, float]] = []
    for rep in range(reps + 1):
        token = text[rep : rep + batch]
        start = time.perf_counter()
        lengths = jax.block_until_ready(appended(lengths, text, token))
        middle = time.perf_counter()
        jax.block_until_ready(proposed(lengths, text, vocab_size=vocab_size))
        took.append((middle - start, time.perf_counter() - middle))
    append, propose = np.median(took[1:], axis=0) * 1e3
    return float(append), float(propose)
