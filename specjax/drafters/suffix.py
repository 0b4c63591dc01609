"""Suffix decoding: propose what most often followed the row's last tokens, while it is likely.

Oliaro et al. 2024 (arXiv 2411.04975), as arctic_inference and vLLM do it: one index holds the
row's own prompt and output, one holds responses of all rows (``suffix_index``). Both draft
(``suffix_guess``), with at most m * factor + offset tokens after a match of m; the greater sum of
probabilities wins, the row's own index among equals.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specjax.drafters import suffix_index as trie
from specjax.drafters.none import chain
from specjax.drafters.suffix_guess import Guess, better, guess
from specjax.drafters.suffix_index import NONE, Index
from specjax.types import Draft, Drafter, Text


@functools.cache
def suffix(
    num_speculative_tokens: int,
    max_tree_depth: int = 24,
    max_spec_factor: float = 1.0,
    min_token_prob: float = 0.1,
    max_spec_offset: float = 0.0,
    use_tree_spec: bool = False,
) -> Drafter:
    """Build the drafter; its params are an ``Index`` of responses (one row), or None.

    Names and defaults are vLLM's ``suffix_decoding_*``; ``max_spec_offset`` and
    ``use_tree_spec``, the likeliest K strings instead of one, are Arctic's. A tree has a node
    that is never used, more than a chain of K has: so the engine knows that it is one.
    """
    size, tree = num_speculative_tokens, use_tree_spec
    budget = budgets(max_tree_depth, max_spec_factor, max_spec_offset, size)

    def init(params, batch_size, capacity):
        return trie.empty(batch_size, max_tree_depth, capacity)

    def propose(params, state, text, sampling, keys, window):
        context, known = recent(text, max_tree_depth)
        nodes = jnp.where(known, state.active[:, : known.shape[1]], NONE)
        best = guess(state, nodes, jnp.asarray(budget), size, min_token_prob, tree)
        if params is not None:
            nodes = jnp.where(known, trie.match(params, context), NONE)
            common = guess(params, nodes, jnp.asarray(budget), size, min_token_prob, tree)
            best = better(best, common)
        return (branches if tree else chain_of)(text, best), state

    def observe(params, state, text, seen, window):
        end = jnp.where(seen.count > 0, seen.start + seen.count + 1, 0)
        return read(state, text, jnp.minimum(end, text.lengths))

    return Drafter(init, propose, observe, size, size + 1 + tree)


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


def budgets(max_tree_depth: int, factor: float, offset: float, limit: int) -> np.ndarray:
    """Say how many tokens each match length 1 .. M may propose, rounded as Arctic's C++ does."""
    lengths = np.arange(1, max(max_tree_depth, 2), dtype=np.float32)
    allowed = lengths * np.float32(factor) + np.float32(offset)
    rounded = np.trunc(allowed.astype(np.float64) + 1e-6)
    return np.clip(rounded, 0, limit).astype(np.int32)


def chain_of(text: Text, best: Guess) -> Draft:
    """Hang a path under the last committed token."""
    return chain(text, best.tokens, best.valid)


def branches(text: Text, best: Guess) -> Draft:
    """Hang a tree under the last committed token, and the node that is never used."""
    path = chain_of(text, best)

    def padded(nodes, value):
        return jnp.pad(nodes, ((0, 0), (0, 1)), constant_values=value)

    parents = jnp.pad(best.parents, ((0, 0), (1, 0)))
    return Draft(padded(path.tokens, 0), padded(parents, 0), padded(path.valid, False), None)
