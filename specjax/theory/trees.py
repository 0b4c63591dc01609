"""Draft trees: the expected tokens of a tree of N nodes, and the best trees.

Node 0 is the root, the last committed token, as in ``types.Draft``; it counts as the one token
the target always adds. A node is reached with the product of the acceptances on its path.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from specjax.theory.arrays import (
    Real,
    Scalar,
    Value,
    library_of,
    require,
    require_costs,
    require_probs,
)


class Tree(NamedTuple):
    """A draft tree and its expected tokens per step (the target's own included)."""

    parents: Int[np.ndarray, "N"]  # parents[0] == 0; parents[i] < i
    tokens: float


class SizedTree(NamedTuple):
    """The tree with the greatest speedup on some hardware."""

    tree: Tree
    depth: int
    speedup: float


class Choice(NamedTuple):
    """A subtree of a candidate tree."""

    nodes: Int[np.ndarray, "n"]  # rising indices into the candidate; 0, the root, is among them
    tree: Tree


def tree_tokens(parents: Real, node_prob: Real) -> Value:
    """Return the tokens per step of a tree: the sum of ``node_prob`` products along node paths.

    Sequoia (Chen et al. 2024, arXiv 2402.12374); OPT-Tree (Wang et al. 2025, arXiv 2406.17276).
    ``parents`` [N]; ``node_prob`` [..., N] is the chance that a node is the accepted one of its
    siblings, given that its parent was accepted (``node_prob[0]`` is ignored: the root is there). A
    chain of alphas gives ``tokens_per_step``. Differentiable: a node's chance times the derivative
    by it is what its whole subtree brings, so the gradient says where a tree should grow or be cut.
    Raises ValueError for probabilities outside [0, 1] or parents that are no tree.
    """
    require_probs(node_prob=node_prob)
    xp = library_of(parents, node_prob)
    parents, reached = xp.asarray(parents), xp.asarray(node_prob)
    size = reached.shape[-1]
    require("parents", parents, 0)
    require("index - parent of nodes 1 .. N - 1", xp.arange(1, size) - parents[1:], 1)
    reached = xp.concatenate([xp.ones_like(reached[..., :1]), reached[..., 1:]], axis=-1)
    for _ in range(int(size - 1).bit_length()):  # pointers jump twice as far each time
        reached, parents = reached * reached[..., parents], parents[parents]
    return reached.sum(axis=-1)


def tree_optimal(acc_vector: Real, n: Scalar, max_depth: Scalar | None = None) -> Tree:
    """Return the best tree of n nodes (root included) and at most ``max_depth`` levels.

    Sequoia (Chen et al. 2024, arXiv 2402.12374). ``acc_vector`` [k] holds the chance that the
    first, second, ... child of a node is the accepted one; [L, k] those of the children at levels 1
    .. L, the last row for all deeper ones. Dynamic program: a tree of depth d is a root and a
    forest whose i-th tree is worth acc_vector[i] times a tree of depth d - 1. Where ``acc_vector``
    falls, adding the best node n - 1 times finds the same. Raises ValueError for chances outside
    [0, 1] or summing above 1, n < 1 or max_depth < 0.
    """
    acc = np.atleast_2d(np.asarray(acc_vector, np.float64))
    require_probs(acc_vector=acc)
    require("sum of acc_vector", acc.sum(axis=-1), 0, 1 + 1e-9)
    require("n", n, 1)
    n = int(n)
    levels = n - 1 if max_depth is None else min(int(max_depth), n - 1)
    require("max_depth", levels, 0)
    tables = tree_tables(acc, n, levels)
    sizes = [m for m in range(n + 1) if np.isfinite(tables[-1].best[m])]
    parents: list[int] = [0]
    grow(parents, 0, sizes[-1], tables)
    return Tree(np.array(parents), float(tables[-1].best[sizes[-1]]))


class Table(NamedTuple):
    """The dynamic program at one depth."""

    best: Float[np.ndarray, "n1"]  # [m]: the worth of the best tree of m nodes
    first: Int[np.ndarray, "k1 n1"]  # [i, m]: nodes in child i, when children i.. share m


def tree_tables(acc: Value, n: int, levels: int) -> list[Table]:
    """Return the tables for subtrees of depths 0 .. levels, the last one that of the root.

    -inf where no tree has that many nodes.
    """
    alone = np.full(n + 1, -np.inf)
    alone[1] = 1.0
    width = acc.shape[1]
    tables = [Table(alone, np.zeros((width + 1, n + 1), int))]
    for level in reversed(range(levels)):
        below, here = tables[-1].best, acc[min(level, len(acc) - 1)]
        possible = np.isfinite(below)  # 0 times -inf is no number
        child = np.where(possible, here[:, None] * np.where(possible, below, 0.0), -np.inf)
        forest = np.full((width + 1, n + 1), -np.inf)
        forest[:, 0] = 0.0
        first = np.zeros((width + 1, n + 1), int)
        for i in reversed(range(width)):
            for m in range(1, n + 1):
                worth = child[i, 1 : m + 1] + forest[i + 1, m - 1 :: -1][:m]
                first[i, m] = int(np.argmax(worth)) + 1
                forest[i, m] = worth[first[i, m] - 1]
        tables.append(Table(np.concatenate([[-np.inf], 1.0 + forest[0, :n]]), first))
    return tables


def grow(parents: list[int], node: int, size: int, tables: list[Table]) -> None:
    """Append the children that the tables choose for a subtree of ``size`` nodes."""
    left = size - 1
    for i in range(len(tables[-1].first) - 1):
        if left == 0:
            return
        share = int(tables[-1].first[i, left])
        parents.append(node)
        grow(parents, len(parents) - 1, share, tables[:-1])
        left -= share


def tree_from_probs(parents: Real, node_prob: Real, n: Scalar) -> Choice:
    """Return the n nodes of a candidate tree, root included, that are reached most often.

    OPT-Tree (Wang et al. 2025, arXiv 2406.17276): a node is never reached more often than its
    parent, so taking the best node n - 1 times gives a tree, and no other n nodes bring more.
    ``parents``, ``node_prob`` [N] as in ``tree_tokens``. Raises ValueError as it does, or unless 1
    <= n <= N.
    """
    total = np.asarray(node_prob).shape[-1]
    require("n", n, 1, total)
    tree_tokens(parents, node_prob)  # validates
    parents, reached = np.asarray(parents), np.asarray(node_prob, np.float64).copy()
    reached[0] = 1.0
    children: list[list[int]] = [[] for _ in range(total)]
    for node in range(1, total):
        reached[node] *= reached[parents[node]]
        children[parents[node]].append(node)
    chosen, front = [], [(-1.0, 0)]
    while len(chosen) < n:
        _, node = heapq.heappop(front)
        chosen.append(node)
        for child in children[node]:
            heapq.heappush(front, (-reached[child], child))
    nodes = np.sort(np.array(chosen))
    place = {node: i for i, node in enumerate(nodes.tolist())}
    kept = np.array([place[parents[node]] for node in nodes.tolist()])
    return Choice(nodes, Tree(kept, float(reached[nodes].sum())))


def cartesian_tree_tokens(accuracies: Real, sizes: Real) -> Value:
    """Return the tokens per step of Medusa's Cartesian tree, 1 + sum_i prod_{j<=i} A_j(s_j).

    Medusa (Cai et al. 2024, arXiv 2401.10774): head j proposes its s_j best tokens under every
    node of the level before. ``accuracies`` [H, S]: chance that head j's best 1, 2, .. S contain
    the token (heads taken as independent); ``sizes`` [H] integers 1 .. S. Raises ValueError for
    chances outside [0, 1] or sizes outside 1 .. S.
    """
    require_probs(accuracies=accuracies)
    xp = library_of(accuracies)
    accuracies, sizes = xp.asarray(accuracies), np.asarray(sizes)
    require("sizes", sizes, 1, accuracies.shape[1])
    return 1.0 + xp.cumprod(accuracies[np.arange(sizes.size), sizes - 1]).sum()


def tree_hardware_optimal(
    acc_vector: Real, t: Callable[[int], float], c: Scalar, max_nodes: Scalar, max_depth: Scalar
) -> SizedTree:
    """Return the tree of n nodes and depth d with the greatest F(n, d) / (t(n) + d c).

    Sequoia (Chen et al. 2024, arXiv 2402.12374): F from ``tree_optimal``, ``t(n)`` the cost of
    verifying n nodes and c of drafting a level, both in plain target steps (t(1) = 1). Plain
    decoding, n = 1 and d = 0, is among the candidates. Raises ValueError as ``tree_optimal`` does,
    or for negative costs.
    """
    require_costs(c=c)
    require("max_nodes", max_nodes, 1)
    require("max_depth", max_depth, 0)
    acc = np.asarray(acc_vector, np.float64)[None]
    max_nodes = int(max_nodes)
    cost = np.array([t(n) for n in range(1, max_nodes + 1)], np.float64)
    require_costs(t=cost)
    tables = tree_tables(acc, max_nodes, min(int(max_depth), max_nodes - 1))
    worth = np.array([table.best[1:] for table in tables])  # [depth, nodes]
    gains = worth / (cost + c * np.arange(len(tables))[:, None])
    depth, size = np.unravel_index(int(gains.argmax()), gains.shape)
    tree = tree_optimal(acc_vector, int(size) + 1, int(depth))
    return SizedTree(tree, int(depth), float(gains[depth, size]))
