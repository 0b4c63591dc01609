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


def find(tables: Int[Array, "... C 10"], at: tuple, parent, token):
    """Find a parent's child in the table ``at`` these indices: (node or NONE, hash bucket)."""
    mixed = parent.astype(jnp.uint32) * jnp.uint32(2654435761)
    mixed ^= token.astype(jnp.uint32) * jnp.uint32(2246822519)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(3266489917)
    bucket = ((mixed ^ (mixed >> 13)) % tables.shape[-2]).astype(jnp.int32)

    def read(node, field):
        return tables[(*at, node, field)]

    def other(node):
        return (node != NONE) & ((read(node, PARENT) != parent) | (read(node, TOKEN) != token))

    node = jax.lax.while_loop(other, lambda node: read(node, CHAIN), read(bucket, BUCKET))
    return node, bucket


def count_one(table: Int[Array, "C 10"], parent, token, number, alive):
    """Count a parent's child once more, or for the first time as node ``number``.

    ``number`` also names the group that this may found: no depth needs two in one append.
    """
    node, bucket = find(table, (), parent, token)
    new, old = alive & (node == NONE), alive & (node != NONE)
    node = jnp.where(new, number, node)
    count = jnp.where(new, 1, table[node, COUNT] + 1)

    # Where it stands now. Siblings stand in a ring: behind the last is the first.
    first, group = table[parent, FIRST], table[node, GROUP]
    alone = new & (first == NONE)
    left, right = table[node, PREVIOUS], table[node, NEXT]
    moves = old & (node != first) & (table[left, COUNT] <= count)
    heir = old & (table[group, HEAD] == node) & (right != first)
    heir &= table[right, COUNT] == count - 1  # the group's new head

    # Where it goes: before this sibling and behind that one; a new node to the end.
    before = jnp.where(new, first, table[table[left, GROUP], HEAD])
    behind = jnp.where(moves & (right == before), left, table[before, PREVIOUS])
    before, behind = jnp.where(alone, node, before), jnp.where(alone, node, behind)
    joins, leads_all = new | moves, alone | (moves & (before == first))

    # The group of its new count: its left neighbour's, its right neighbour's, or a new one.
    follows = joins & ~leads_all & (table[behind, COUNT] == count)
    leads = moves & ~follows & (table[before, COUNT] == count)
    goal = jnp.where(leads, table[before, GROUP], number)
    goal = jnp.where(follows, table[behind, GROUP], goal)

    writes = (
        (heir, group, HEAD, right),
        (moves & (left != behind), left, NEXT, right),
        (moves & (right != before), right, PREVIOUS, left),
        (joins & ~alone, behind, NEXT, node),
        (joins & ~alone, before, PREVIOUS, node),
        (joins, node, NEXT, before),
        (joins, node, PREVIOUS, behind),
        (leads_all, parent, FIRST, node),
        (alive & ~follows, goal, HEAD, node),
        (alive, node, GROUP, goal),
        (alive, node, COUNT, count),
        (new, node, PARENT, parent),
        (new, node, TOKEN, token),
        (new, node, CHAIN, table[bucket, BUCKET]),
        (new, bucket, BUCKET, node),
    )
    where, place, field, value = (
        jnp.stack(jnp.broadcast_arrays(*part)) for part in zip(*writes, strict=True)
    )
    nowhere = table.shape[0] + jnp.arange(len(writes))
    place = jnp.where(where, place, nowhere)
    table = table.at[place, field].set(value, mode="drop", unique_indices=True)
    return table, jnp.where(alive, node, NONE)


def extend(index: Index, tokens: Int[Array, "B P"], count: Int[Array, "B"]) -> Index:
    """Append each row's first ``count`` tokens."""

    def one_more(carry):
        index, i = carry
        return append(index, jnp.take(tokens, i, axis=1), i < count), i + 1

    start = index, jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(lambda carry: (carry[1] < count).any(), one_more, start)[0]


def match(index: Index, context: Int[Array, "B M"]) -> Int[Array, "B M"]:
    """Find the node of the last 1 .. M tokens of each row; NONE where they never occurred.

    An index of one row serves all rows of ``context``, which end where its columns end.
    """
    batch_size, longest = context.shape
    rows = jnp.arange(batch_size) % index.size.shape[0]
    lengths = jnp.arange(1, longest + 1)

    def descend(depth, nodes):
        def ask(row, node, token):
            return find(index.tables, (row, depth), node, token)[0]

        column = jnp.minimum(longest - lengths + depth, longest - 1)
        tokens = jnp.take(context, column, axis=1)
        children = jax.vmap(jax.vmap(ask, in_axes=(None, 0, 0)))(rows, nodes, tokens)
        found = jnp.where((nodes != NONE) | (depth == 0), children, NONE)
        return jnp.where((depth < lengths)[None], found, nodes)

    return jax.lax.fori_loop(0, longest, descend, jnp.zeros_like(context))
