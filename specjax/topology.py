"""Trees as arrays: from parents to depths, ancestors and attention masks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specjax.types import Draft


def chain_parents(batch_size: int, nodes: int) -> Int[Array, "B N"]:
    """Return the parents of a chain: node i follows node i - 1, the root is its own parent."""
    parents = np.maximum(np.arange(nodes, dtype=np.int32) - 1, 0)
    return jnp.asarray(np.broadcast_to(parents, (batch_size, nodes)))


def causal(nodes: int) -> Bool[Array, "1 N N"]:
    """Return the visibility of a chain: node n sees nodes 0..n."""
    return jnp.asarray(np.tri(nodes, dtype=bool)[None])


def ancestors(parents: Int[Array, "B N"]) -> Bool[Array, "B N N"]:
    """Mark [b, n, m] where node m lies on the path from the root to n, both included.

    Squaring the one-step reachability doubles the reach, so log2(N) products suffice.
    """
    nodes = parents.shape[1]
    if nodes == 1:
        return jnp.ones((parents.shape[0], 1, 1), bool)
    index = jnp.arange(nodes)
    step = (parents[:, :, None] == index[None, None]) | (index[:, None] == index[None])[None]
    for _ in range(int(nodes - 1).bit_length()):
        step = (step[:, :, :, None] & step[:, None]).any(axis=2)
    return step


def depths(visible: Bool[Array, "B N M"]) -> Int[Array, "B N"]:
    """Return each node's distance from the root, given its ancestors."""
    return visible.sum(axis=-1, dtype=jnp.int32) - 1


def place(
    draft: Draft, cache_lengths: Int[Array, "B"]
) -> tuple[Int[Array, "B N"], Bool[Array, "B N N"]]:
    """Turn a tree into what a forward pass needs: RoPE positions and who sees whom."""
    visible = ancestors(draft.parents)
    return cache_lengths[:, None] + depths(visible), visible


@functools.partial(jax.jit, static_argnames="window")
def attention_mask(
    lengths: Int[Array, "B"], visible: Bool[Array, "B1 N M"], window: int
) -> Bool[Array, "B N W"]:
    """Mark the cache slots each node sees: everything below lengths, then its ancestors.

    Column m of ``visible`` is slot ``lengths + m``. Under ``jax.jit`` by itself like the seams
    of ``ops``: a backend that knows a chain's mask by its name need not build it.
    """
    batch, (_, nodes, columns) = lengths.shape[0], visible.shape
    column = jnp.arange(window)[None] - lengths[:, None]
    index = jnp.broadcast_to(jnp.clip(column, 0, columns - 1)[:, None], (batch, nodes, window))
    visible = jnp.broadcast_to(visible, (batch, nodes, columns))
    drafted = jnp.take_along_axis(visible, index, axis=2) & (column < columns)[:, None]
    return (column < 0)[:, None] | drafted
