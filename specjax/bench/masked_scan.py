"""The simple way to draft from the past: compare all of it with every new token.

The match that ends at position j of the past is as long as the one that ended at j - 1, plus one,
where the past's token j is the new one; elsewhere nothing. Of the tokens that follow the longest
matches the most frequent one is drafted, and the places where it stands are followed on. The trie
of ``drafters.suffix_index`` was built instead, for each token here reads the whole past, for
every row of a batch; ``specjax bench drafters`` times both. This is the least such drafter: it
looks at the longest match only.
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
    """Say how long a match ends at each place, after one more token of each row."""
    before = jnp.pad(lengths[:, :-1], ((0, 0), (1, 0)))
    return jnp.where(past[None] == token[:, None], jnp.minimum(before + 1, DEPTH), 0)


@functools.partial(jax.jit, static_argnames="vocab_size")
def proposed(
    lengths: Int[Array, "batch past"], past: Int[Array, "past"], *, vocab_size: int
) -> Int[Array, "batch drafted"]:
    """Draft ``DEPTH`` tokens for each row."""
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
