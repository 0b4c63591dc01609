"""Suffix decoding: propose the tokens that most often followed the row's last tokens.

Oliaro et al. 2024 (arXiv:2411.04975), as arctic_inference and vLLM do it: one index holds the
row's own prompt and output, another one responses of all rows (``suffix_index``). Both draft
(``suffix_draft``), at most m * factor + offset tokens after a match of m tokens; the draft with
the larger sum of probabilities is used, of equals the one from the row's own index.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specjax.core.types import Draft, Drafter, Text
from specjax.drafters import suffix_index as trie
from specjax.drafters.none import chain
from specjax.drafters.suffix_draft import SuffixDraft, draft_from_matches, higher_scoring
from specjax.drafters.suffix_index import NONE, Index


@functools.cache
def suffix(
    num_speculative_tokens: int,
    max_tree_depth: int = 24,
    max_spec_factor: float = 1.0,
    min_token_prob: float = 0.1,
    max_spec_offset: float = 0.0,
    use_tree_spec: bool = False,
) -> Drafter:
    """Return the drafter; its params are an ``Index`` of responses (one row), or None.

    Args:
        num_speculative_tokens: K, at most.
        max_tree_depth: of the index; the longest match plus the longest draft.
        max_spec_factor: a match of m tokens drafts at most m * factor + offset tokens.
        min_token_prob: tokens less likely than this, given the match, are not drafted.
        max_spec_offset: see ``max_spec_factor``.
        use_tree_spec: draft the K most likely nodes of a tree instead of one path. The draft then
            has one more node than a chain, which is never used: a tree is recognised by it.

    Names and defaults are vLLM's ``suffix_decoding_*``; the last two are Arctic's.
    """
    size, tree = num_speculative_tokens, use_tree_spec
    budget = budgets(max_tree_depth, max_spec_factor, max_spec_offset, size)

    def init(params, batch_size, capacity):
        return trie.empty(batch_size, max_tree_depth, capacity)

    def propose(params, state, text, sampling, keys, window):
        context, known = recent(text, max_tree_depth)
        nodes = jnp.where(known, state.active[:, : known.shape[1]], NONE)
        best = draft_from_matches(state, nodes, jnp.asarray(budget), size, min_token_prob, tree)
        if params is not None:
            nodes = jnp.where(known, trie.match(params, context), NONE)
            common = draft_from_matches(
                params, nodes, jnp.asarray(budget), size, min_token_prob, tree
            )
            best = higher_scoring(best, common)
        return (branches if tree else chain_of)(text, best), state

    def observe(params, state, text, observation, window):
        end = jnp.where(observation.count > 0, observation.start + observation.count + 1, 0)
        return read(state, text, jnp.minimum(end, text.lengths))

    return Drafter(init, propose, observe, size, size + 1 + tree)


def read(index: Index, text: Text, end: Int[Array, "B"]) -> Index:
    """Return the index with each row's tokens up to ``end`` appended."""

    def one_more(index):
        token = jnp.take_along_axis(text.tokens, index.size[:, None], axis=1, mode="clip")[:, 0]
        return trie.append(index, token, index.size < end)

    return jax.lax.while_loop(lambda index: (index.size < end).any(), one_more, index)


def recent(text: Text, max_tree_depth: int) -> tuple[Int[Array, "B M"], Bool[Array, "B M"]]:
    """Return the last M = max_tree_depth - 1 tokens, and which match lengths 1 .. M may be tried.

    A match may not be the whole text, as in Arctic. M is at least 1.
    """
    most = max(max_tree_depth - 1, 1)
    column = text.lengths[:, None] - most + jnp.arange(most)[None]
    context = jnp.take_along_axis(text.tokens, jnp.maximum(column, 0), axis=1)
    return context, jnp.arange(1, most + 1)[None] < text.lengths[:, None]


def budgets(max_tree_depth: int, factor: float, offset: float, limit: int) -> np.ndarray:
    """Return how many tokens each match length 1 .. M may draft, rounded as Arctic's C++ does."""
    lengths = np.arange(1, max(max_tree_depth, 2), dtype=np.float32)
    allowed = lengths * np.float32(factor) + np.float32(offset)
    rounded = np.trunc(allowed.astype(np.float64) + 1e-6)
    return np.clip(rounded, 0, limit).astype(np.int32)


def chain_of(text: Text, best: SuffixDraft) -> Draft:
    """Return the draft of a path after the last committed token."""
    return chain(text, best.tokens, best.valid)


def branches(text: Text, best: SuffixDraft) -> Draft:
    """Return the draft of a tree after the last committed token, with the node never used."""
    path = chain_of(text, best)

    def padded(nodes, value):
        return jnp.pad(nodes, ((0, 0), (0, 1)), constant_values=value)

    parents = jnp.pad(best.parents, ((0, 0), (1, 0)))
    return Draft(padded(path.tokens, 0), padded(parents, 0), padded(path.valid, False), None)
