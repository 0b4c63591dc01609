"""The key-value cache: allocate, move an accepted path to the front, join and leave a batch.

Rollback needs no function: entries past ``lengths`` are garbage, so it is ``lengths``.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from specjax.types import IDLE, Cache, State


def init_cache(
    num_layers: int,
    num_heads: int,
    head_dims: tuple[int, int],
    dtype: str,
    batch_size: int,
    capacity: int,
) -> Cache:
    """Allocate zeros: one [B, H, T, d] leaf per layer, updated in place under donation.

    ``head_dims`` is the d of keys and of values.
    """
    shape = (batch_size, num_heads, capacity)
    key, value = head_dims
    return Cache(
        keys=tuple(jnp.zeros((*shape, key), dtype) for _ in range(num_layers)),
        values=tuple(jnp.zeros((*shape, value), dtype) for _ in range(num_layers)),
        lengths=jnp.zeros(batch_size, jnp.int32),
    )


def advance(cache: Cache, count: Int[Array, "B"]) -> Cache:
    """Keep ``count`` nodes that already lie where they belong (a chain's accepted prefix)."""
    return cache._replace(lengths=cache.lengths + count)


def keep(cache: Cache, path: Int[Array, "B K1"], count: Int[Array, "B"]) -> Cache:
    """Move a tree's accepted path to the front, then advance.

    Column 0 is the root, already in place; a chain calls ``advance`` instead, since a
    gather followed by a scatter of slots that do not move only costs time.
    """
    rows = jnp.arange(path.shape[0])[:, None]
    source = cache.lengths[:, None] + path[:, 1:]
    goal = cache.lengths[:, None] + jnp.arange(1, path.shape[1])[None]

    def move(leaf):
        return leaf.at[rows, :, goal].set(leaf[rows, :, source], mode="drop")

    moved = cache._replace(
        keys=tuple(move(leaf) for leaf in cache.keys),
        values=tuple(move(leaf) for leaf in cache.values),
    )
    return advance(moved, count)


def width(state: State) -> int:
    """Return how many positions the rows of a state's caches have."""
    return state.cache.keys[0].shape[2]


def resize(leaf: Shaped[Array, "B H T d"], capacity: int) -> Shaped[Array, "B H T2 d"]:
    """Give keys or values so many positions a row: the first ones that are there, then zeros."""
    kept = leaf[:, :, :capacity]
    return jnp.pad(kept, ((0, 0), (0, 0), (0, capacity - kept.shape[2]), (0, 0)))


def admit(state: State, slot: Int[Array, ""], row: State) -> State:
    """Put a one-row state into a slot of a batch: B leads every leaf, so this is one map."""
    return jax.tree.map(lambda all_rows, one: all_rows.at[slot].set(one[0]), state, row)


def leave(state: State, slot: Int[Array, ""]) -> State:
    """Make a slot idle."""
    return rest(state, jnp.arange(state.text.reason.shape[0]) == slot)


def select(state: State, slots: Int[Array, "B2"], num_rows: Int[Array, ""]) -> State:
    """Make a batch of other size: its first ``num_rows`` slots hold ``slots``, the rest idle."""
    state = jax.tree.map(lambda leaf: leaf[slots], state)
    return rest(state, jnp.arange(slots.shape[0]) >= num_rows)


def rest(state: State, idle: Bool[Array, "B"]) -> State:
    """Make slots idle, and greedy: they ask for no noise. All else in them is garbage."""
    reason = jnp.where(idle, IDLE, state.text.reason)
    temperature = jnp.where(idle, 0.0, state.sampling.temperature)
    return state._replace(
        text=state.text._replace(reason=reason),
        sampling=state.sampling._replace(temperature=temperature),
    )
