"""Drafts from the matched nodes of a suffix index: the most likely path, or tree.

A path's probability is the product of count(child) / count(node) from the matched node on (Oliaro
et al. 2024, arXiv:2411.04975). All matches of a row, of its last 1 .. M tokens, are tried side by
side, each with a budget of its own; the draft with the largest sum of probabilities is used, of
equals that of the longer match. Numbers are rounded where arctic_inference rounds them, so that
scores are bitwise equal.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.drafters.suffix_index import COUNT, FIRST, NEXT, NONE, TOKEN, Index


class SuffixDraft(NamedTuple):
    """The draft of one index, with its score."""

    tokens: Int[Array, "B K"]
    parents: Int[Array, "B K"]  # 0: what was matched; i + 1: tokens[:, i]
    probs: Float[Array, "B K"]  # from the match to here
    valid: Bool[Array, "B K"]
    score: Float[Array, "B"]  # sum of the valid probs, in order
    match: Int[Array, "B"]  # how many tokens of context led there; 0: none occurred


def draft_from_matches(
    index: Index,
    nodes: Int[Array, "B M"],
    budget: Int[Array, "M"],
    size: int,
    least: float,
    tree: bool,
) -> SuffixDraft:
    """Return the best draft of at most ``size`` tokens.

    Args:
        index: of each row, or of one row that is used for all.
        nodes: the node that the last m + 1 tokens of row b matched, at [b, m]; NONE if none did.
        budget: how many tokens a match of m + 1 tokens may draft, at [m].
        size: K.
        least: the least probability of a drafted token.
        tree: draft a tree, not a path.
    """
    draft = likeliest_tree if tree else likeliest_path
    parts = draft(index, nodes, budget, size, least)  # each [K, B, M]
    _, _, probs, valid = parts
    score = jnp.zeros(nodes.shape, jnp.float32)
    for prob in jnp.where(valid, probs, 0.0):
        score = score + prob
    found, most = nodes != NONE, nodes.shape[1]
    ranked = jnp.where(found, score, -1.0)[:, ::-1]  # the longest of equals comes first
    best = most - 1 - jnp.argmax(ranked, axis=1).astype(jnp.int32)
    row = jnp.arange(nodes.shape[0])
    tokens, parents, probs, valid = (jnp.swapaxes(part[:, row, best], 0, 1) for part in parts)
    match = jnp.where(found.any(axis=1), best + 1, 0)
    return SuffixDraft(tokens, parents, probs, valid, score[row, best], match)


def higher_scoring(own: SuffixDraft, common: SuffixDraft) -> SuffixDraft:
    """Return each row's draft from its own index, or the common one's if its score is higher."""
    wins = common.score > own.score
    return jax.tree.map(
        lambda a, b: jnp.where(wins.reshape(-1, *[1] * (a.ndim - 1)), b, a), own, common
    )


def likeliest_path(
    index: Index, nodes: Int[Array, "B M"], budget: Int[Array, "M"], size: int, least: float
) -> tuple[Array, Array, Array, Array]:
    """Return (tokens, parents, probs, valid), each [K, B, M], of the most frequent children."""
    rows, level, last = places(index, nodes)

    def extend(carry, number):
        node, count, prob, alive = carry
        table = jnp.minimum(level + number + 1, last)
        child = index.tables[rows, table, node, FIRST]
        alive &= (number < budget)[None] & (level + number + 1 <= last) & (child != NONE)
        record = index.tables[rows, table, child]
        prob = prob * (record[..., COUNT].astype(jnp.float32) / count.astype(jnp.float32))
        alive &= prob >= jnp.float32(least)
        parent = jnp.full_like(child, number)
        out = record[..., TOKEN], parent, prob, alive
        return (child, record[..., COUNT], prob, alive), out

    count = jnp.maximum(index.tables[rows, level, nodes, COUNT], 1)
    start = nodes, count, jnp.ones(nodes.shape, jnp.float32), nodes != NONE
    return jax.lax.scan(extend, start, jnp.arange(size))[1]


class Branch(NamedTuple):
    """A drafted node and its most likely child not drafted yet: [B, M], or [B, M, K + 1] of all."""

    table: Array  # where its children are
    count: Array
    prob: Array
    first: Array  # its first child
    child: Array  # its next child; NONE when all were drafted
    chance: Array  # that child's probability; -1 for NONE, or if it is too small


def likeliest_tree(
    index: Index, nodes: Int[Array, "B M"], budget: Int[Array, "M"], size: int, least: float
) -> tuple[Array, Array, Array, Array]:
    """Return (tokens, parents, probs, valid), each [K, B, M], of the most likely nodes.

    Each step drafts the most likely node not drafted yet, the first of equals. Siblings are sorted
    by count, so that one child per node is compared: branch 0 is the match's, branch i + 1 that of
    the i-th drafted token.
    """
    rows, level, last = places(index, nodes)
    slot = jnp.arange(size + 1)[None, None]

    def read(table, node):
        return index.tables[rows, jnp.minimum(table, last), node]

    def chance(table, child, count, prob):
        own = read(table, child)[..., COUNT]
        own_prob = prob * own.astype(jnp.float32) / count.astype(jnp.float32)
        own_prob = jnp.where(own == count, prob, own_prob)
        real = (child != NONE) & (own_prob >= jnp.float32(least))
        return jnp.where(real, own_prob, -1.0)

    def branch(table, node, count, prob):
        first = jnp.where((table <= last) & (node != NONE), read(table, node)[..., FIRST], NONE)
        return Branch(table, count, prob, first, first, chance(table, first, count, prob))

    def extend(tree, number):
        parent = jnp.argmax(tree.chance, axis=-1).astype(jnp.int32)
        at = parent[..., None]
        here = Branch(*(jnp.take_along_axis(leaf, at, axis=-1)[..., 0] for leaf in tree))
        record = read(here.table, here.child)
        sibling = jnp.where(record[..., NEXT] == here.first, NONE, record[..., NEXT])
        left = chance(here.table, sibling, here.count, here.prob)
        tree = tree._replace(
            child=jnp.where(slot == at, sibling[..., None], tree.child),
            chance=jnp.where(slot == at, left[..., None], tree.chance),
        )
        new = branch(here.table + 1, here.child, record[..., COUNT], here.chance)
        tree = jax.tree.map(
            lambda old, one: jnp.where(slot == number + 1, one[..., None], old), tree, new
        )
        alive = (here.chance > 0) & (number < budget)[None]
        return tree, (record[..., TOKEN], jnp.where(alive, parent, 0), here.chance, alive)

    count = jnp.maximum(read(level, nodes)[..., COUNT], 1)
    table = jnp.broadcast_to(level + 1, nodes.shape)
    root = branch(table, nodes, count, jnp.ones(nodes.shape, jnp.float32))
    tree = jax.tree.map(lambda one: jnp.repeat(one[..., None], size + 1, axis=-1), root)
    tree = tree._replace(chance=jnp.where(slot == 0, tree.chance, -1.0))
    return jax.lax.scan(extend, tree, jnp.arange(size))[1]


def places(index: Index, nodes: Int[Array, "B M"]) -> tuple[Array, Array, int]:
    """Return each row's row in the index, the tables of its matched nodes, and the last table."""
    rows = jnp.arange(nodes.shape[0])[:, None] % index.size.shape[0]
    return rows, jnp.arange(nodes.shape[1])[None], index.tables.shape[1] - 1
