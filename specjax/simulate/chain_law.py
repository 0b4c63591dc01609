"""A toy chain's rounds drawn from their law: one draw per emitted token, and no drafting.

After state s the next token is y with the target's probability p(y | s), whatever the rule, and it
was drafted and accepted with probability M[s, y] <= p(y | s) (``accepted_mass``). So a position is
one of 2V outcomes: a token, accepted or not; a round ends where one is not, or after K + 1. Draws
take Walker's alias method (Walker 1977, doi:10.1145/355744.355749): a column and a comparison.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32
from scipy.special import softmax

from specjax.simulate.noise import hash_index
from specjax.theory.acceptance import coupled_mass
from specjax.theory.arrays import Real, Scalar, Value


class Tables(NamedTuple):
    """Alias tables of a number of laws; N, a power of two, is at least 2V.

    Outcome y < N / 2 is token y, not accepted; N / 2 + y is token y, accepted.
    """

    thresholds: UInt32[Array, "L V N"]  # a word below it takes the column, any other ``aliases``
    aliases: Int[Array, "L V N"]


def softmax_at(logits: Real, temperature: Scalar) -> Value:
    """Return softmax(logits / T) in float64; one-hot at temperature 0."""
    logits = np.asarray(logits, np.float64)
    if temperature == 0:
        return np.eye(logits.shape[-1])[logits.argmax(axis=-1)]
    return softmax(logits / temperature, axis=-1)


def accepted_mass(p: Value, q: Value, method: str) -> Value:
    """Return M [V, V]: the chance that x is drafted and accepted after s.

    min(p, q) of rejection sampling ("probabilistic"), the shared choice of "coupled", or p at the
    draft's most likely token ("greedy").
    """
    if method == "greedy":
        return p * (np.arange(p.shape[-1]) == q.argmax(axis=-1)[:, None])
    return coupled_mass(np, p, q) if method == "coupled" else np.minimum(p, q)


def make_tables(target: Value, drafts: Value, temperatures: Value, method: str) -> Tables:
    """Return the laws of every draft [A, V, V] at every temperature [T], L = A T."""
    size = target.shape[-1]
    half = 1 << (size - 1).bit_length()
    laws = np.zeros((len(drafts), len(temperatures), size, 2, half))
    for i, draft in enumerate(drafts):
        for j, temperature in enumerate(temperatures):
            p, q = softmax_at(target, temperature), softmax_at(draft, temperature)
            accepted = accepted_mass(p, q, method)
            laws[i, j, :, 0, :size], laws[i, j, :, 1, :size] = p - accepted, accepted
    keep, alias = alias_method(laws.reshape(-1, 2 * half).clip(0))
    words = np.minimum(keep * 2.0**32, 2**32 - 1).astype(np.uint32)
    shape = (len(drafts) * len(temperatures), size, 2 * half)
    return Tables(jnp.asarray(words.reshape(shape)), jnp.asarray(alias.reshape(shape)))


def alias_method(laws: Float[np.ndarray, "R N"]) -> tuple[Value, Value]:
    """Return what each column keeps, and the outcome that has the rest of it.

    An outcome's probability is the sum over the N columns, each drawn equally often. Time and
    again the column with the least left is filled up from the one with the most.
    """
    rows, size = np.arange(len(laws)), laws.shape[1]
    left = size * laws / laws.sum(axis=1, keepdims=True)
    keep, alias = np.ones_like(left), np.tile(np.arange(size, dtype=np.int32), (len(laws), 1))
    filled = np.zeros(left.shape, bool)
    for _ in range(size - 1):
        least = np.where(filled, np.inf, left).argmin(axis=1)
        most = np.where(filled, -np.inf, left).argmax(axis=1)
        keep[rows, least], alias[rows, least] = left[rows, least], most
        left[rows, most] -= 1.0 - left[rows, least]
        filled[rows, least] = True
    return keep.clip(0, 1), alias


@jax.jit
def draw_rounds(
    tables: Tables,
    words: UInt32[Array, "2 B"],
    which: Int[Array, "B"],
    max_draft: Int[Array, "B"],
    positions: Int[Array, "K"],
    num_start: Int[Array, ""],
    num_rounds: Int[Array, ""],
) -> tuple[Int[Array, "B"], Int[Array, "K B"]]:
    """Return per row the accepted tokens of its rounds, and how many rounds accepted more than i.

    Args:
        tables: the laws.
        words: a row's noise key; rows with equal ones write the same text at any K.
        which: a row's law.
        max_draft: a row's K.
        positions: 0 .. max K - 1.
        num_start: rounds before those that are counted.
        num_rounds: rounds that are counted.
    """
    _, size, columns = tables.thresholds.shape
    half, shift = columns // 2, 33 - columns.bit_length()
    thresholds, aliases = tables.thresholds.ravel(), tables.aliases.ravel()

    def position(carry):
        time, state, place, rounds, reached = carry
        column = (hash_index(words, 2 * time) >> shift).astype(jnp.int32)
        at = (which * size + state) * columns + column
        outcome = jnp.where(hash_index(words, 2 * time + 1) < thresholds[at], column, aliases[at])
        accepted = (outcome >= half) & (place < max_draft)
        counted = accepted & (rounds >= 0) & (rounds < num_rounds)
        reached = reached + ((place[None] == positions[:, None]) & counted[None])
        return (
            time + 1,
            outcome & (half - 1),
            jnp.where(accepted, place + 1, 0),
            rounds + ~accepted,
            reached,
        )

    zero = jnp.zeros_like(which)
    start = (
        jnp.uint32(0),
        zero,
        zero,
        zero - num_start,
        jnp.zeros((len(positions), len(which)), jnp.int32),
    )
    reached = jax.lax.while_loop(lambda carry: (carry[3] < num_rounds).any(), position, start)[-1]
    return reached.sum(axis=0), reached
