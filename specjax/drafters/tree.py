"""The shape of draft trees: fixed (Medusa's, vLLM's), or chosen in every round (EAGLE-2).

A node is named by its path: (0, 2) is the third most likely child of the root's first. A chain
is the tree of (0,), (0, 0), ... Nodes are numbered level by level, siblings by rank.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

Path = tuple[int, ...]
MOST_NODES = 256


@dataclass(frozen=True)
class Tree:
    """A tree of ``num_nodes`` drafted tokens, at most ``depth`` deep; the root is not counted.

    ``paths`` lists the nodes of a fixed tree. None is a dynamic one (EAGLE-2, Li et al. 2024,
    arXiv:2406.16858): of each level the ``top_k`` most likely paths are continued by ``top_k``
    tokens each, and of all these candidates the ``num_nodes`` most likely paths are kept.

    Paths that are less likely than ``min_confidence``, by the drafter's own probabilities, are cut
    off in every round.
    """

    depth: int  # K
    top_k: int  # the most children of a node
    num_nodes: int
    paths: tuple[Path, ...] | None = None
    min_confidence: float = 0.0

    def __post_init__(self):
        for name in ("depth", "top_k", "num_nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"a tree's {name} must be at least 1, got {getattr(self, name)}.")
        if self.num_nodes > MOST_NODES:
            raise ValueError(
                f"a tree of {self.num_nodes} nodes is too large: draft at most {MOST_NODES}."
            )
        if self.paths is None:
            self._check_dynamic()

    def _check_dynamic(self):
        num_candidates = self.top_k + (self.depth - 1) * self.top_k**2
        least = self.depth if self.top_k == 1 else self.depth + 1  # fewer never get so deep
        if not least <= self.num_nodes <= num_candidates:
            raise ValueError(
                f"num_nodes={self.num_nodes} must be {least} to {num_candidates} in a tree of "
                f"depth={self.depth} and top_k={self.top_k}: that is how many it sees."
            )

    @property
    def width(self) -> int:
        """How many nodes of a level a forward pass reads."""
        if self.paths is None:
            return self.top_k
        inner = {path[:-1] for path in self.paths}
        return max(sum(len(path) == level for path in inner) for level in range(self.depth))

    @property
    def scored(self) -> bool:
        """Whether a round needs the probability of each path."""
        return self.paths is None or self.min_confidence > 0

    @property
    def slots(self) -> int:
        """How many nodes all forward passes read: slots in the drafter's own cache."""
        return (self.depth - 1) * self.width


def fixed(paths: Sequence[Sequence[int]]) -> Tree:
    """Return the tree of these nodes.

    Args:
        paths: of all nodes but the root, in any order, as in Medusa's choices.

    Raises:
        ValueError: a node is listed twice, or its parent or the sibling before it is missing.

    >>> tree = fixed([(0,), (1,), (0, 0)])
    >>> tree.depth, tree.top_k, tree.num_nodes
    (2, 2, 3)
    """
    ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
    known: set[Path] = {()}
    for path in ordered:
        if path in known:
            raise ValueError(f"node {path} of the draft tree is listed twice, or is its root.")
        for other in [path[:-1]] + [(*path[:-1], path[-1] - 1)] * (path[-1] != 0):
            if other not in known:
                raise ValueError(f"node {path} of the draft tree needs {other}: add it.")
        known.add(path)
    depth = max(map(len, ordered), default=0)
    top_k = max((path[-1] + 1 for path in ordered), default=0)
    return Tree(depth, top_k, len(ordered), tuple(ordered))


def chain_of(tree: Tree | int) -> Tree:
    """Return ``tree``, or the chain of K tokens for a number K."""
    return fixed([(0,) * i for i in range(1, tree + 1)]) if isinstance(tree, int) else tree


class Candidates(NamedTuple):
    """The C nodes that a round scores: the root first, then level by level.

    Of level 1 they are the root's ``top_k`` children, of each later one those of the nodes
    that were read, in the order they were read in.
    """

    level: Int[np.ndarray, "C"]
    pass_index: Int[np.ndarray, "C"]  # which node's logits it is from, 0 being the root's


@functools.cache
def candidates(tree: Tree) -> Candidates:
    """Return the candidates of a tree."""
    deeper = np.arange(tree.slots).repeat(tree.top_k)
    first = np.zeros(1 + tree.top_k, int)
    level = np.concatenate([[0], np.ones(tree.top_k, int), 2 + deeper // tree.width])
    return Candidates(level, np.concatenate([first, 1 + deeper]))


class Fixed(NamedTuple):
    """A fixed tree as indices of candidates."""

    read: Int[np.ndarray, "K W"]  # by level: which of its candidates; 0 where fewer are
    kept: Int[np.ndarray, "N"]  # candidates
    parents: Int[np.ndarray, "N"]


@functools.cache
def lay_out(tree: Tree) -> Fixed:
    """Return a fixed tree as indices of candidates."""
    assert tree.paths is not None
    paths, inner = tree.paths, {path[:-1] for path in tree.paths}
    number: dict[Path, int] = {path: i for i, path in enumerate(((), *paths))}
    read = np.zeros((tree.depth, tree.width), int)
    place: dict[Path, int] = {(): 0}
    kept, first = [0], 1
    for level in range(1, tree.depth + 1):
        here = [path for path in paths if len(path) == level]
        within = {path: place[path[:-1]] * tree.top_k + path[-1] for path in here}
        kept += [first + within[path] for path in here]
        going_on = [path for path in here if path in inner]
        read[level - 1, : len(going_on)] = [within[path] for path in going_on]
        place = {path: i for i, path in enumerate(going_on)}
        first += tree.top_k * (1 if level == 1 else tree.width)
    parents = [0, *(number[path[:-1]] for path in paths)]
    return Fixed(read, np.array(kept), np.array(parents))


def from_parents(parents: Sequence[int]) -> Tree:
    """Return the tree of an array of parents [N], root first, as ``theory.tree_optimal`` has them.

    >>> from_parents([0, 0, 0, 1]).paths
    ((0,), (1,), (0, 0))
    """
    paths: list[Path] = [()]
    for node in range(1, len(parents)):
        rank = list(parents[1:node]).count(parents[node])
        paths.append((*paths[parents[node]], rank))
    return fixed(paths[1:])
