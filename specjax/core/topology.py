"""Trees as arrays: from parents to depths, ancestors and attention masks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specjax.core.types import Draft


def chain_parents(batch_size: int, nodes: int) -> Int[Array, "B N"]:
    """Return the parents of a chain: node i follows node i - 1, the root is its own parent."""
    parents = np.maximum(np.arange(nodes, dtype=np.int32) - 1, 0)
    return jnp.asarray(np.broadcast_to(parents, (batch_size, nodes)))


def causal(nodes: int) -> Bool[Array, "1 N N"]:
    """Return a chain's attention mask: node n attends to nodes 0..n."""
    return jnp.asarray(np.tri(nodes, dtype=bool)[None])


def ancestors(parents: Int[Array, "B N"]) -> Bool[Array, "B N N"]:
    """Return where node m is on the path from the root to node n, both included, at [b, n, m].

    Squaring the one-step reachability doubles the reach, so log2(N) products suffice.

    >>> ancestors(jnp.asarray([[0, 0, 1]]))[0].astype(int)  # a chain of three nodes
    Array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]], dtype=int32)
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
    """Return a draft's RoPE positions and its tree attention mask."""
    visible = ancestors(draft.parents)
    return cache_lengths[:, None] + depths(visible), visible


@functools.partial(jax.jit, static_argnames="window")
def attention_mask(
    lengths: Int[Array, "B"], visible: Bool[Array, "B1 N M"], window: int
) -> Bool[Array, "B N W"]:
    """Return which cache slots each node attends to: those below lengths, and its ancestors.

    Column m of ``visible`` is slot ``lengths + m``. A fusible op as those of ``ops``: a backend
    that recognises it by name can pass its kernel the lengths instead of a mask.
    """
    return shown(jnp.arange(window)[None] - lengths[:, None], visible)


def shown(column: Int[Array, "B W"], visible: Bool[Array, "B1 N M"]) -> Bool[Array, "B N W"]:
    """Return which slots each node attends to: the text's, and its ancestors'.

    ``column`` is each slot's in ``visible``, negative for those of the text.
    """
    (batch, window), (_, nodes, columns) = column.shape, visible.shape
    index = jnp.broadcast_to(jnp.clip(column, 0, columns - 1)[:, None], (batch, nodes, window))
    visible = jnp.broadcast_to(visible, (batch, nodes, columns))
    drafted = jnp.take_along_axis(visible, index, axis=2) & (column < columns)[:, None]
    return (column < 0)[:, None] | drafted


@functools.partial(jax.jit, static_argnames=("window", "chunked"))
def sliding_mask(
    mask: Bool[Array, "B N W"],
    positions: Int[Array, "B N"],
    first: Int[Array, "B"],
    window: int,
    slots: Int[Array, "B W"] | None = None,
    chunked: bool = False,
) -> Bool[Array, "B N W"]:
    """Return the mask without what lies before each node's last ``window`` positions.

    The nodes are in slots ``first`` and up, any other slot holds the position of its own number.
    (Of nodes that a drafter wrote before these, that is at least their position: they stay visible
    as long as the window is wider than the draft is deep.)

    Args:
        mask: which cache slots each node attends to.
        positions: of the nodes.
        first: the slot of each row's first node.
        window: how many positions a node sees, itself included.
        slots: the numbers of the mask's slots, if they are not 0, 1, 2, ...
        chunked: of these positions, a node sees those from the last multiple of ``window`` on.
    """
    slots = jnp.arange(mask.shape[2])[None] if slots is None else slots
    node = slots - first[:, None]
    nodes = positions.shape[1]
    own = jnp.take_along_axis(positions, jnp.clip(node, 0, nodes - 1), axis=1)
    at = jnp.where((node >= 0) & (node < nodes), own, slots)
    start = positions // window * window if chunked else positions - window + 1
    return mask & (at[:, None] >= start[:, :, None])


@functools.partial(jax.jit, static_argnames=("window", "size", "chunked"))
def ring_mask(
    lengths: Int[Array, "B"],
    visible: Bool[Array, "B1 N M"],
    positions: Int[Array, "B N"],
    window: int,
    size: int,
    chunked: bool = False,
) -> Bool[Array, "B N R"]:
    """Return which slots of a ring of ``size`` each node attends to, after the pass wrote to it.

    Of the numbers that share a slot it holds the largest below ``lengths + M``.

    Raises:
        ValueError: what the pass writes overwrites what its first node sees.
    """
    columns = visible.shape[2]
    if size < window + columns - 1:
        raise ValueError(
            f"a pass of {columns} positions does not fit a ring of {size} for a window of {window}:"
            f" read at most {size - window + 1} at once."
        )
    end = (lengths + columns)[:, None]
    held = end - 1 - (end - 1 - jnp.arange(size)[None]) % size
    mask = shown(held - lengths[:, None], visible) & (held >= 0)[:, None]
    first = lengths + (columns - positions.shape[1])
    return sliding_mask(mask, positions, first, window, held, chunked)
