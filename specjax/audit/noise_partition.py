"""Partition a rule's noise into cells with one outcome each, without knowledge of the rule.

A ratio rule reads two kinds of noise. A uniform takes 2^23 values, as JAX draws them: the kernel
accepts a node for the lower ones and rejects it for the rest, and a search counts the lower ones.
Exponential noise samples token t with probability r_t / sum(r), the argmin of exponentials at
these rates: with 1 for the likeliest token, x for t and infinity for the others, the kernel emits
t while x < r_t / r_likeliest, and a search counts again.

Both searches run at one node while the path to it is accepted and, where possible, every other
node is rejected. Where a rule does something else, the two opposite ends of a cell disagree.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from specjax.core.types import Verdict

GRID = 2**23  # a float32 uniform is 0, 1 / GRID, .. or LAST
LAST = (GRID - 1) / GRID
SOON, NEVER = 2.0**-20, 1e30  # an exponential that wins the argmin, and one that never does
MARGIN = 2.0**-18  # distance from a tie at the second end of a cell

# (uniforms [V R N], exponentials [V R N V]) -> the kernel's verdicts on R drafts: [V R ..]
RunKernel = Callable[[np.ndarray, np.ndarray], Verdict]
Shape = tuple[int, ...]  # the parents of a draft


class NoiseCells(NamedTuple):
    """V cells of the noise for each of R drafts, one per sampled token, with probabilities."""

    ends: tuple[tuple[np.ndarray, np.ndarray], ...]  # two points: uniforms, exponentials
    width: np.ndarray  # [R] probability of the uniforms
    shares: np.ndarray  # [V R N] probability of the token that is sampled after each node


def noise_partition(
    run: RunKernel, shape: Shape, tokens: np.ndarray, size: int, *, parts: int, walks: bool
) -> Iterator[NoiseCells]:
    """Yield cells that together cover all noise of the drafts ``tokens``.

    Args:
        run: the kernel, as a function of noise.
        shape: parents of the drafts' nodes.
        tokens: [R, N] the drafts.
        size: vocabulary size.
        parts: number of equal parts that every uniform is cut into as well; more than 1 for
            rules whose uniforms interact.
        walks: the rule reads Gumbel noise at every node and no uniform (``walk``), so a cell
            fixes the token sampled after each node. Other rules sample one token per round, so
            a cell has the same token for all nodes.
    """
    nodes, every = range(len(shape)), np.arange(size)
    rates = np.stack([find_rates(run, n, shape, tokens, size) for n in nodes], axis=1)
    if walks:
        others = itertools.product(every, repeat=len(shape) - 1)
        winners = [np.array([(*other, last) for last in every]) for other in others]
        cells = [(np.zeros(tokens.shape, int), np.full(tokens.shape, GRID))]
    else:
        winners = [every[:, None].repeat(len(shape), axis=1)]
        edges = [find_edge(run, n, shape, tokens, size) for n in nodes[1:]]
        cells = find_cells(edges, tokens.shape, parts)
    soon, never = np.float32(SOON), np.float32(NEVER)
    early, late = np.float32(np.maximum(rates - MARGIN, 1 / GRID)), np.float32(rates + MARGIN)
    share = rates / np.maximum(rates.sum(axis=-1, keepdims=True), 1 / GRID)
    for (low, high), winner in itertools.product(cells, winners):
        wins = (winner[..., None] == every)[:, None]  # [V 1 N V]
        near = np.where(wins, early, late)
        far = np.broadcast_to(np.where(wins, soon, never), near.shape)
        first, last = (
            np.broadcast_to(np.float32(points / GRID), near.shape[:-1])
            for points in (low, np.maximum(high - 1, low))
        )
        yield NoiseCells(
            ends=((first, far), (last, near)),
            width=((high - low) / GRID).prod(axis=-1),
            shares=np.take_along_axis(share[None], winner[:, None, :, None], axis=-1)[..., 0],
        )


def find_edge(run: RunKernel, node: int, shape: Shape, tokens: np.ndarray, size: int) -> np.ndarray:
    """Return [R], the number of values of a node's uniform that accept it, its path accepted."""
    uniforms = np.tile(accept_path_to(shape[node], shape, tokens), (size, 1, 1))
    exponentials = np.ones((size, *tokens.shape, size))

    def accepted(points: np.ndarray) -> np.ndarray:  # [V R]
        uniforms[..., node] = points / GRID
        verdict = run(uniforms, exponentials)
        path, num_accepted = np.asarray(verdict.path), np.asarray(verdict.num_accepted)
        taken = np.arange(path.shape[-1]) <= num_accepted[..., None]
        return ((path == node) & taken).any(axis=-1)

    return count(accepted, (len(tokens),), at_once=size)


def find_rates(
    run: RunKernel, node: int, shape: Shape, tokens: np.ndarray, size: int
) -> np.ndarray:
    """Return [R, V], each token's rate after a node relative to the likeliest token's.

    On the path to the node every sampled token is the drafted one, which ``walk`` needs.
    """
    way, every = path_to(node, shape), np.arange(size)
    uniforms = np.tile(accept_path_to(node, shape, tokens), (size, 1, 1))

    def winner(exponentials: np.ndarray) -> np.ndarray:  # [V R V], alike after every node
        exponentials = exponentials[:, :, None].repeat(len(shape), axis=2)
        for step, child in itertools.pairwise(way):
            exponentials[:, :, step] = np.where(tokens[:, child, None] == every, SOON, NEVER)
        return np.asarray(run(uniforms, exponentials).tokens[..., len(way) - 1])

    likeliest = winner(np.ones((size, len(tokens), size)))[0, :, None] == every
    others = np.where(likeliest, 1.0, NEVER)
    rival = np.eye(size, dtype=bool)[:, None]

    def wins(points: np.ndarray) -> np.ndarray:  # [1 V R]
        return (winner(np.where(rival, points[0, ..., None] / GRID, others)) == every[:, None])[
            None
        ]

    return count(wins, (size, len(tokens)), at_once=1).T / GRID


def find_cells(
    edges: list[np.ndarray], shape: tuple[int, ...], parts: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the bounds (low, high) [R, N] of every cell, cut at the edges and into parts."""
    bounds = np.linspace(0, GRID, parts + 1).astype(int)

    def pieces(edge: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        none, every = np.zeros_like(edge), np.full_like(edge, GRID)
        sides = itertools.product(itertools.pairwise(bounds), ((none, edge), (edge, every)))
        return [(np.clip(a, low, high), np.clip(b, low, high)) for (low, high), (a, b) in sides]

    for chosen in itertools.product(*(pieces(edge) for edge in edges)):
        low, high = np.zeros(shape, int), np.full(shape, GRID)  # the root's uniform is not read
        for node, (begin, end) in enumerate(chosen, start=1):
            low[:, node], high[:, node] = begin, end
        yield low, high


def count(
    holds: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], at_once: int
) -> np.ndarray:
    """Return the number of grid points at which a predicate holds; it holds for the lower ones.

    ``holds`` receives ``at_once`` points at a time, [at_once, *shape], in ascending order.
    """
    low, high = np.zeros(shape, int), np.full(shape, GRID)
    steps = np.arange(1, at_once + 1).reshape(-1, *(1 for _ in shape))
    while (low < high).any():
        points = np.minimum(low + (high - low) * steps // (at_once + 1), GRID - 1)
        number = np.sum(holds(points), axis=0)
        below = np.take_along_axis(points, np.maximum(number - 1, 0)[None], axis=0)[0]
        above = np.take_along_axis(points, np.minimum(number, at_once - 1)[None], axis=0)[0]
        open_ = low < high
        low = np.where(open_ & (number > 0), below + 1, low)
        high = np.where(open_ & (number < at_once), above, high)
    return low


def accept_path_to(node: int, shape: Shape, tokens: np.ndarray) -> np.ndarray:
    """Return uniforms [R, N] that accept the path to a node and, where possible, no other node."""
    uniforms = np.full(tokens.shape, LAST)
    uniforms[:, path_to(node, shape)] = 0.0
    return uniforms


def path_to(node: int, shape: Shape) -> list[int]:
    """Return the nodes from the root to a node, both included."""
    path = [node]
    while path[-1] > 0:
        path.append(shape[path[-1]])
    return path[::-1]
