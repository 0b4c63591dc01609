"""What a draft and a drafter's state look like: shapes, types, root, parents, tokens."""

import jax
import numpy as np

from specjax.core.topology import chain_parents
from specjax.core.types import RUNNING, Draft, Engine, PyTree, State


def require(fact: bool, message: str) -> None:
    """Raise AssertionError with the message unless the fact holds."""
    if not fact:
        raise AssertionError(message)


def check_draft(engine: Engine, draft: Draft, state: State) -> None:
    """Check a draft's arrays, on the host."""
    text, drafter, vocab_size = state.text, engine.drafter, engine.target.vocab_size
    shape = (len(text.lengths), drafter.nodes)
    for name, dtype in (("tokens", np.int32), ("parents", np.int32), ("valid", np.bool_)):
        leaf = getattr(draft, name)
        require(
            leaf.shape == shape and leaf.dtype == dtype,
            f"Draft.{name} is {leaf.dtype}{list(leaf.shape)}, expected "
            f"{np.dtype(dtype)}{list(shape)}, one column per node",
        )
    if draft.probs is not None:
        expected = (*shape, vocab_size)
        require(
            draft.probs.shape == expected and draft.probs.dtype == np.float32,
            f"Draft.probs is {draft.probs.dtype}{list(draft.probs.shape)}, expected "
            f"float32{list(expected)}",
        )
    rows = np.flatnonzero(text.reason == RUNNING)
    tokens, parents, valid = (np.asarray(leaf)[rows] for leaf in draft[:3])
    last = text.tokens[rows, text.lengths[rows] - 1]
    require(
        bool((tokens[:, 0] == last).all() and valid[:, 0].all()),
        f"node 0 must be valid and carry the last committed token {last.tolist()}, got "
        f"{tokens[:, 0].tolist()}",
    )
    index = np.arange(shape[1])
    rising = (parents >= 0) & (parents < np.maximum(index, 1)[None])
    require(bool(rising.all()), f"a node's parent must come before it, got {parents.tolist()}")
    require(
        bool(((tokens >= 0) & (tokens < vocab_size))[valid].all()),
        f"valid nodes carry tokens outside the vocabulary of {vocab_size}: {tokens.tolist()}",
    )
    above = np.take_along_axis(valid, parents, axis=1)
    require(bool((above | ~valid).all()), "a valid node has a parent that is not valid")
    level = np.zeros_like(parents)
    for node in range(1, shape[1]):
        level[:, node] = 1 + np.take_along_axis(level, parents[:, node : node + 1], axis=1)[:, 0]
    deepest = int(np.where(valid, level, 0).max(initial=0))
    require(deepest <= drafter.depth, f"a node is {deepest} deep, and depth is {drafter.depth}")
    if drafter.nodes == drafter.depth + 1:
        chain = np.asarray(chain_parents(len(rows), shape[1]))
        require(
            bool((parents == chain).all()),
            f"with nodes = depth + 1 a draft is a chain, got the parents {parents.tolist()}",
        )


def check_state(before: PyTree, after: PyTree, what: str) -> None:
    """Check that a drafter's state keeps its structure, shapes and types."""
    kinds = [
        jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", x) for x in (before, after)
    ]
    require(kinds[0] == kinds[1], f"{what} turns the state {kinds[0]} into {kinds[1]}")
