"""The layers' caches, and the slots of a batch: allocate, keep accepted nodes, insert, release.

Rejected keys and values need no function: entries past ``lengths`` are garbage and are written
again. A recurrent state has not seen rejected tokens: it advances when nodes are kept.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specjax.core import delta
from specjax.core.types import IDLE, Cache, Recurrent, Ring, Slots, State

RING_ROOM = 1024  # positions: a pass may write one more to a ring


def init_slots(
    num_heads: int, head_dims: tuple[int, int], dtype: str, batch_size: int, capacity: int
) -> Slots:
    """Return an empty layer: leaves [B, H, T, d], updated in place under donation.

    ``head_dims`` is the d of keys and of values.
    """
    return Slots(*(jnp.zeros((batch_size, num_heads, capacity, size), dtype) for size in head_dims))


def init_ring(
    num_heads: int, head_dims: tuple[int, int], dtype: str, batch_size: int, size: int
) -> Ring:
    """Return an empty layer that holds its last ``size`` positions, otherwise as ``init_slots``."""
    return Ring(*init_slots(num_heads, head_dims, dtype, batch_size, size))


def init_recurrent(
    state: tuple[int, int, int], tail: tuple[int, int], dtype: str, batch_size: int
) -> Recurrent:
    """Return the empty state of a layer: zeros, as before the first token.

    Args:
        state: heads, and sizes of their keys and values.
        tail: how many inputs the convolution looks back, and its channels.
        dtype: of the tail.
        batch_size: B.
    """
    return Recurrent(
        jnp.zeros((batch_size, *state), jnp.float32), jnp.zeros((batch_size, *tail), dtype)
    )


def init_cache(layers: Iterable[Slots | Ring | Recurrent], batch_size: int) -> Cache:
    """Return a cache of these empty layers, with lengths [B] of 0."""
    return Cache(tuple(layers), jnp.zeros(batch_size, jnp.int32))


def keep(cache: Cache, path: Int[Array, "B K1"] | None, count: Int[Array, "B"]) -> Cache:
    """Add ``count`` nodes to each row: the first ones, or those along ``path``.

    Args:
        cache: after a forward pass, which wrote node i to slot ``lengths + i``, and left what it
            does to a recurrent state.
        path: a tree's accepted nodes, which move to the front. Column 0 is the root, which is
            there already. None for a chain, whose accepted prefix is in place: its slots would be
            gathered and scattered to where they are.
        count: how many nodes are kept.
    """
    if path is not None:
        rows = jnp.arange(path.shape[0])[:, None]
        source = cache.lengths[:, None] + path[:, 1:]
        goal = cache.lengths[:, None] + jnp.arange(1, path.shape[1])[None]

        def move(layer):
            at, to = (slots_of(layer, positions) for positions in (source, goal))
            return jax.tree.map(lambda x: x.at[rows, :, to].set(x[rows, :, at], mode="drop"), layer)

        layers = (layer if isinstance(layer, Recurrent) else move(layer) for layer in cache.layers)
        cache = cache._replace(layers=tuple(layers))
    layers = (
        delta.keep(layer, path, count) if isinstance(layer, Recurrent) else layer
        for layer in cache.layers
    )
    return Cache(tuple(layers), cache.lengths + count)


def slots_of(layer: Slots | Ring, positions: Int[Array, "*lead"]) -> Int[Array, "*lead"]:
    """Return the slots of positions."""
    return positions % layer.keys.shape[2] if isinstance(layer, Ring) else positions


def capacity(state: State) -> int:
    """Return how many positions there is room for: in caches, or in the text if all are rings."""
    held = (layer.keys for layer in all_slots(state) if isinstance(layer, Slots))
    return next((keys.shape[2] for keys in held), state.text.tokens.shape[1])


def resize(layer: Slots, capacity: int) -> Slots:
    """Return a layer cut, or padded with zeros, to so many positions."""

    def one(leaf):
        kept = leaf[:, :, :capacity]
        return jnp.pad(kept, ((0, 0), (0, 0), (0, capacity - kept.shape[2]), (0, 0)))

    return jax.tree.map(one, layer)


def all_slots(state: State) -> list[Slots | Ring]:
    """Return the keys and values of all layers, the target's and then the drafter's."""
    found = jax.tree.leaves((state.cache.layers, state.drafter), is_leaf=is_slots)
    return [node for node in found if isinstance(node, Slots | Ring)]


def is_slots(node: object) -> bool:
    """Return whether a node of a pytree is a layer's keys and values."""
    return isinstance(node, Slots | Ring)


def resume(state: State, saved: list[Slots | Ring], length: Int[Array, ""]) -> State:
    """Return a new row that has read ``length`` positions, which another row read before.

    Args:
        state: the new row, as ``decode.init_state`` made it.
        saved: ``all_slots`` of a row whose text has the same ``length`` + 1 first tokens: a head's
            entry for a position also depends on the token after it. What a drafter holds besides,
            ``observe`` makes anew of the positions that are left.
        length: how many positions have been read, less than the prompt has. Of a ring, the window
            before them must not be overwritten yet.
    """
    left = iter(saved)

    def overwrite(new, old):
        most = min(new.shape[2], old.shape[2])
        return new.at[:, :, :most].set(old[:, :, :most])

    def one(node):
        return jax.tree.map(overwrite, node, next(left)) if is_slots(node) else node

    layers, drafter = jax.tree.map(one, (state.cache.layers, state.drafter), is_leaf=is_slots)
    lengths = jnp.full_like(state.cache.lengths, length)
    return state._replace(cache=Cache(layers, lengths), drafter=drafter)


def insert_row(state: State, slot: Int[Array, ""], row: State) -> State:
    """Return the batch with the one-row state ``row`` in ``slot``."""
    return jax.tree.map(lambda all_rows, one: all_rows.at[slot].set(one[0]), state, row)


def release_slot(state: State, slot: Int[Array, ""]) -> State:
    """Return the batch with ``slot`` idle."""
    return mark_idle(state, jnp.arange(state.text.reason.shape[0]) == slot)


def select(state: State, slots: Int[Array, "B2"], num_rows: Int[Array, ""]) -> State:
    """Return a batch of B2 slots: the first ``num_rows`` hold ``slots``, the others are idle."""
    state = jax.tree.map(lambda leaf: leaf[slots], state)
    return mark_idle(state, jnp.arange(slots.shape[0]) >= num_rows)


def mark_idle(state: State, idle: Bool[Array, "B"]) -> State:
    """Return the batch with slots idle, and greedy so that no noise is drawn for them."""
    reason = jnp.where(idle, IDLE, state.text.reason)
    temperature = jnp.where(idle, 0.0, state.sampling.temperature)
    return state._replace(
        text=state.text._replace(reason=reason),
        sampling=state.sampling._replace(temperature=temperature),
    )
