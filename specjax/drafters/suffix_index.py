"""An index of what was said: every string of up to D tokens, how often, and what followed.

A trie in flat arrays, one table per depth, so that one appended token touches one node of each
table and all depths are updated side by side; time does not depend on how much is indexed. The
alternative, comparing the row with every place of the text when drafting, needs no memory but
takes longer with every token that is indexed, for each match length and each drafted token.

Siblings stand in Arctic's order (Oliaro et al. 2024, arXiv 2411.04975; arctic_inference):
by falling count; a new one goes last; one whose count rises from c to c + 1 goes to the front
of the siblings with its left neighbour's count, if that is c or c + 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

# What stands in a table's place i: of node i; of the children of node i, which are nodes of this
# depth while i is one less deep; of group i, the siblings of one count; of hash bucket i.
PARENT, TOKEN, COUNT, NEXT, PREVIOUS, GROUP, FIRST, HEAD, BUCKET, CHAIN = range(10)
NUM_FIELDS = 10
NONE = 0  # also the root, as a parent


class Index(NamedTuple):
    """Counted strings per row; zeros are an empty index. Capacity C - 1 tokens per row."""

    tables: Int[Array, "B D C 10"]  # depth d + 1 at index d
    size: Int[Array, "B"]  # tokens indexed
    active: Int[Array, "B D"]  # the nodes of the last 1 .. D tokens of the sequence that grows


def empty(batch_size: int, depth: int, capacity: int) -> Index:
    """Return an index of at most ``capacity`` tokens a row: 40 x depth bytes for each."""
    return Index(
        jnp.zeros((batch_size, depth, capacity + 1, NUM_FIELDS), jnp.int32),
        jnp.zeros(batch_size, jnp.int32),
        jnp.zeros((batch_size, depth), jnp.int32),
    )


def append(index: Index, token: Int[Array, "B"], alive: Bool[Array, "B"]) -> Index:
    """Let the sequence of every ``alive`` row grow by a token, while there is room."""
    number = index.size + 1
    alive &= number < index.tables.shape[2]
    parents = jnp.concatenate([jnp.zeros_like(index.active[:, :1]), index.active[:, :-1]], axis=1)
    known = (parents > NONE).at[:, 0].set(True) & alive[:, None]
    every_depth = jax.vmap(count_one, in_axes=(0, 0, None, None, 0))
    tables, nodes = jax.vmap(every_depth)(index.tables, parents, token, number, known)
    active = jnp.where(alive[:, None], nodes, index.active)
    return Index(tables, index.size + alive, active)


def find(table: Int[Array, "C 10"], parent, token) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Find a parent's child by its token: (node or NONE, hash bucket)."""
    mixed = parent.astype(jnp.uint32) * jnp.uint32(2654435761)
    mixed ^= token.astype(jnp.uint32) * jnp.uint32(2246822519)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(3266489917)
    bucket = ((mixed ^ (mixed >> 13)) % table.shape[0]).astype(jnp.int32)

    def other(node):
        return (node != NONE) & ((table[node, PARENT] != parent) | (table[node, TOKEN] != token))

    node = jax.lax.while_loop(other, lambda node: table[node, CHAIN], table[bucket, BUCKET])
    return node, bucket


def count_one(table: Int[Array, "C 10"], parent, token, number, alive):
    """Count a parent's child once more, or for the first time as node ``number``.

    ``number`` also names the group that this may found: no depth needs two in one append.
    """
    node, bucket = find(table, parent, token)
    new, old = alive & (node == NONE), alive & (node != NONE)
    node = jnp.where(new, number, node)

    def put(table, where, place, field, value):
        place = jnp.where(where, place, table.shape[0])
        return table.at[place, field].set(value, mode="drop")

    first = table[parent, FIRST]
    alone = new & (first == NONE)
    last = jnp.where(first == NONE, node, table[first, PREVIOUS])  # siblings stand in a ring
    count = jnp.where(new, 1, table[node, COUNT] + 1)
    left, right = table[node, PREVIOUS], table[node, NEXT]
    has_left, has_right = old & (node != first), old & (right != first)
    group = table[node, GROUP]

    # A node that leaves its group's head leaves it to its right neighbour.
    heir = old & (table[group, HEAD] == node) & has_right & (table[right, COUNT] == count - 1)
    moves = has_left & (table[left, COUNT] <= count)
    target = table[table[left, GROUP], HEAD]
    table = put(table, heir, group, HEAD, right)

    # Into the ring: a new node goes before the first, which is behind the last.
    table = put(table, moves, left, NEXT, right)
    table = put(table, moves, right, PREVIOUS, left)
    before = jnp.where(new, first, target)
    behind = jnp.where(new, last, table[target, PREVIOUS])
    joins = moves | (new & ~alone)
    table = put(table, joins, behind, NEXT, node)
    table = put(table, joins, before, PREVIOUS, node)
    table = put(table, joins | alone, node, NEXT, jnp.where(alone, node, before))
    table = put(table, joins | alone, node, PREVIOUS, jnp.where(alone, node, behind))
    table = put(table, alone | (moves & (target == first)), parent, FIRST, node)

    # Into the group of its new count: its left neighbour's, its right neighbour's, or a new one.
    follows = jnp.where(new, ~alone, moves & (target != first))
    follows &= table[behind, COUNT] == count
    leads = moves & ~follows & (table[target, COUNT] == count)
    group = jnp.where(follows, table[behind, GROUP], jnp.where(leads, table[target, GROUP], number))
    table = put(table, alive & ~follows, group, HEAD, node)
    table = put(table, alive, node, GROUP, group)
    table = put(table, alive, node, COUNT, count)

    table = put(table, new, node, PARENT, parent)
    table = put(table, new, node, TOKEN, token)
    table = put(table, new, node, CHAIN, table[bucket, BUCKET])
    return put(table, new, bucket, BUCKET, node), jnp.where(alive, node, NONE)


def match(index: Index, pattern: Int[Array, "B M"]) -> Int[Array, "B M"]:
    """Find the node of the last 1 .. M tokens of each row; NONE where they never occurred.

    ``index`` has one row, which all rows of ``pattern`` (right-aligned) ask.
    """
    longest = pattern.shape[1]
    lengths = jnp.arange(1, longest + 1)

    def descend(depth, nodes):
        column = jnp.maximum(longest - lengths + depth, 0)
        tokens = jnp.take(pattern, jnp.minimum(column, longest - 1), axis=1)
        table = index.tables[0, depth]
        ask = jax.vmap(jax.vmap(lambda node, token: find(table, node, token)[0]))
        found = jnp.where((nodes != NONE) | (depth == 0), ask(nodes, tokens), NONE)
        return jnp.where((depth < lengths)[None], found, nodes)

    return jax.lax.fori_loop(0, longest, descend, jnp.zeros_like(pattern))
