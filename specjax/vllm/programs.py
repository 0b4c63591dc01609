"""The compiled programs of drafting from text: begin a row, read tokens, read and propose."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from specjax.core.cache import is_slots, resize
from specjax.core.types import Drafter, PyTree, Sampling, Slots, Text
from specjax.vllm.options import greedy, observation


def fit(state: PyTree, window: int) -> PyTree:
    """Return a drafter's state with caches of ``window`` positions."""

    def one(node):
        return resize(node, window) if isinstance(node, Slots) else node

    return jax.tree.map(one, state, is_leaf=is_slots)


@functools.cache
def constants(num_rows: int, depth: int) -> tuple[Sampling, Key[Array, "B"]]:
    """Return what ``Propose`` is given of sampling: greedy, and keys that nothing reads."""
    return greedy(num_rows, depth), jax.random.split(jax.random.key(0), num_rows)


@functools.partial(jax.jit, static_argnums=(0, 2, 3, 4))
def begin(drafter: Drafter, params: PyTree, num_rows: int, capacity: int, window: int) -> PyTree:
    """Return the state of rows that have read nothing."""
    return fit(drafter.init(params, num_rows, capacity), window)


@functools.partial(jax.jit, donate_argnums=0)
def begin_row(state: PyTree, slot: Int[Array, ""], row: PyTree) -> PyTree:
    """Return the state with a row that has read nothing in a slot."""
    return jax.tree.map(lambda rows, one: rows.at[slot].set(one[0]), state, row)


@jax.jit
def select(state: PyTree, slots: Int[Array, "B2"]) -> PyTree:
    """Return the state of the rows in these slots."""
    return jax.tree.map(lambda leaf: leaf[slots], state)


@functools.partial(jax.jit, static_argnums=1)
def refit(state: PyTree, window: int) -> PyTree:
    """Return ``fit``, compiled."""
    return fit(state, window)


class Unread(NamedTuple):
    """The texts, and what the drafter has still to read of them."""

    text: Text
    known: Int[Array, "B"]  # tokens that it has read
    count: Int[Array, "B"]  # tokens to read now, at most ``width``


@functools.partial(jax.jit, static_argnums=(0, 4, 5), donate_argnums=2)
def read(
    drafter: Drafter, params: PyTree, state: PyTree, unread: Unread, width: int, window: int
) -> PyTree:
    """Return the state after ``count`` more tokens of each row."""
    seen = observation(unread.text, unread.known - 1, unread.count, width)
    return drafter.observe(params, state, unread.text, seen, window)


@functools.partial(jax.jit, static_argnums=(0, 4, 7), donate_argnums=2)
def draft(
    drafter: Drafter, params: PyTree, state: PyTree, unread: Unread, width: int,
    sampling: Sampling, keys: Key[Array, "B"], window: int,
) -> tuple[Int[Array, "B K"], Bool[Array, "B K"], PyTree]:  # fmt: skip
    """Read as ``read`` does; return the drafted tokens, which of them are real, and the state."""
    state = read(drafter, params, state, unread, width, window)
    found, state = drafter.propose(params, state, unread.text, sampling, keys, window)
    real = jnp.cumprod(found.valid[:, 1:], axis=1).astype(bool)
    return found.tokens[:, 1:], real, state
