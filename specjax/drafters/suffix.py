"""Suffix decoding: propose what most often followed the row's last tokens, while it is likely.

Oliaro et al. 2024 (arXiv 2411.04975), as arctic_inference and vLLM do it: one index holds the
row's own prompt and output, one holds responses of all rows. For every match length m a path of
most frequent children is followed while the product of count(child) / count(node) is at least
``min_token_prob``, for at most m * factor + offset tokens; the path with the greatest sum of
these products wins, the longer match among equals, the row's own index before the common one.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax.drafters import suffix_index as trie
from specjax.drafters.none import chain
from specjax.drafters.suffix_index import COUNT, FIRST, NONE, TOKEN, Index
from specjax.types import Drafter, Text


class Guess(NamedTuple):
    """The best path of one index: what Arctic calls a draft."""

    tokens: Int[Array, "B K"]
    probs: Float[Array, "B K"]
    valid: Bool[Array, "B K"]
    score: Float[Array, "B"]  # sum of the valid probs, in order
    match: Int[Array, "B"]  # how many tokens of context led there; 0: none occurred


@functools.cache
def suffix(
    num_speculative_tokens: int,
    max_tree_depth: int = 24,
    max_spec_factor: float = 1.0,
    min_token_prob: float = 0.1,
    max_spec_offset: float = 0.0,
) -> Drafter:
    """Build the drafter; its params are an ``Index`` of responses (one row), or None.

    Names and defaults are vLLM's ``suffix_decoding_*``; ``max_spec_offset`` is Arctic's.
    """
    depth = num_speculative_tokens

    def init(params, batch_size, capacity):
        return trie.empty(batch_size, max_tree_depth, capacity)

    def propose(params, state, text, sampling, keys, window):
        budget = budgets(max_tree_depth, max_spec_factor, max_spec_offset, depth)
        context, known = recent(text, max_tree_depth)
        nodes = jnp.where(known, state.active[:, : known.shape[1]], NONE)
        guess = follow(state, nodes, budget, depth, min_token_prob)
        if params is not None:
            nodes = jnp.where(known, trie.match(params, context), NONE)
            guess = better(guess, follow(params, nodes, budget, depth, min_token_prob))
        return chain(text, guess.tokens, guess.valid), state

    def observe(params, state, text, seen, window):
        end = jnp.where(seen.count > 0, seen.start + seen.count + 1, 0)
        return read(state, text, jnp.minimum(end, text.lengths))

    return Drafter(init, propose, observe, depth, depth + 1)


def read(index: Index, text: Text, end: Int[Array, "B"]) -> Index:
    """Append each row's tokens up to ``end`` that are not in its index yet."""

    def one_more(index):
        token = jnp.take_along_axis(text.tokens, index.size[:, None], axis=1, mode="clip")[:, 0]
        return trie.append(index, token, index.size < end)

    return jax.lax.while_loop(lambda index: (index.size < end).any(), one_more, index)


def recent(text: Text, max_tree_depth: int) -> tuple[Int[Array, "B M"], Bool[Array, "B M"]]:
    """Return the last M = max_tree_depth - 1 tokens, and which match lengths 1 .. M may be tried.

    A match may not be the whole context: Arctic's rule. M is 1 at least, and then goes nowhere.
    """
    most = max(max_tree_depth - 1, 1)
    column = text.lengths[:, None] - most + jnp.arange(most)[None]
    context = jnp.take_along_axis(text.tokens, jnp.maximum(column, 0), axis=1)
    return context, jnp.arange(1, most + 1)[None] < text.lengths[:, None]


def budgets(max_tree_depth: int, factor: float, offset: float, limit: int) -> Int[Array, "M"]:
    """Say how many tokens each match length may propose, rounded as Arctic's C++ does."""
    lengths = np.arange(1, max(max_tree_depth, 2), dtype=np.float32)
    allowed = lengths * np.float32(factor) + np.float32(offset)
    rounded = np.trunc(allowed.astype(np.float64) + 1e-6)
    return jnp.asarray(np.clip(rounded, 0, limit), jnp.int32)


def follow(
    index: Index, nodes: Int[Array, "B M"], budget: Int[Array, "M"], depth: int, least: float
) -> Guess:
    """Follow the most frequent children from each match length's node, and keep the best path.

    ``nodes[b, m]`` is what m + 1 tokens matched, NONE if nothing. An index of one row serves all.
    """
    batch_size, most = nodes.shape
    rows = jnp.arange(batch_size)[:, None] % index.size.shape[0]
    level = jnp.arange(most)[None]  # the table of the matched nodes
    matched, threshold = nodes != NONE, jnp.float32(least)
    last = index.tables.shape[1] - 1

    def extend(carry, number):
        node, count, prob, alive, score = carry
        table = jnp.minimum(level + number + 1, last)
        child = index.tables[rows, table, node, FIRST]
        alive &= (number < budget)[None] & (level + number + 1 <= last) & (child != NONE)
        record = index.tables[rows, table, child]
        prob = prob * (record[..., COUNT].astype(jnp.float32) / count.astype(jnp.float32))
        alive &= prob >= threshold
        score = score + jnp.where(alive, prob, 0.0)
        out = record[..., TOKEN], prob, alive
        return (child, record[..., COUNT], prob, alive, score), out

    count = jnp.maximum(index.tables[rows, level, nodes, COUNT], 1)
    one = jnp.ones(nodes.shape, jnp.float32)
    start = (nodes, count, one, matched, jnp.zeros_like(one))
    (_, _, _, _, score), paths = jax.lax.scan(extend, start, jnp.arange(depth))
    ranked = jnp.where(matched, score, -1.0)[:, ::-1]  # the longest of equals comes first
    best = most - 1 - jnp.argmax(ranked, axis=1).astype(jnp.int32)
    row = jnp.arange(batch_size)
    tokens, probs, valid = (jnp.swapaxes(path[:, row, best], 0, 1) for path in paths)
    found = matched.any(axis=1)
    return Guess(tokens, probs, valid, score[row, best], jnp.where(found, best + 1, 0))


def better(own: Guess, common: Guess) -> Guess:
    """Choose per row: the row's own index unless the common one scores higher."""
    wins = common.score > own.score
    return jax.tree.map(
        lambda a, b: jnp.where(wins.reshape(-1, *[1] * (a.ndim - 1)), b, a), own, common
    )
