"""Cut the noise of a rule into boxes on which it does one thing, without knowing the rule.

A ratio rule reads two kinds of noise. Of a uniform there are 2^23 values, as JAX draws them:
the kernel accepts a node at the lower ones and refuses it at the rest, and a search counts the
lower ones. A race of exponential clocks is won by token t with probability r_t / sum(r): in a
duel the likeliest token's clock rings at 1, that of t at x, the others never; the kernel says
t while x < r_t / r_likeliest, and a search counts again.

Either is asked of a node while the path to it is accepted and all else, if possible, refused.
What a rule does otherwise shows where two opposite ends of a box are answered differently.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from specjax.types import Verdict

GRID = 2**23  # a float32 uniform is 0, 1 / GRID, .. or LAST
LAST = (GRID - 1) / GRID
SOON, NEVER = 2.0**-20, 1e30  # when a clock rings that shall win, or shall not
MARGIN = 2.0**-18  # how near to a tie the second end of a race is

# (uniforms [V R N], clocks [V R N V]) -> what the kernel says of R drafts, V times: [V R ..]
Ask = Callable[[np.ndarray, np.ndarray], Verdict]
Shape = tuple[int, ...]  # the parents of a draft


class Boxes(NamedTuple):
    """V boxes for each of R drafts, one per token that may win, and what they weigh."""

    ends: tuple[tuple[np.ndarray, np.ndarray], ...]  # two: uniforms and clocks
    width: np.ndarray  # [R] probability of the uniforms
    shares: np.ndarray  # [V R N] probability that the box's winner wins the race after each node


def cut(
    ask: Ask, shape: Shape, tokens: np.ndarray, size: int, *, parts: int, walks: bool
) -> Iterator[Boxes]:
    """Cut the noise of the drafts ``tokens`` [R, N] over ``size`` tokens into boxes.

    ``parts`` > 1 also cuts every uniform into so many equal parts, for rules whose uniforms
    interact. A rule that ``walks`` reads no uniform and shows the winners of all races; of
    other rules one race shows, so a box has one winner for all nodes.
    """
    nodes, every = range(len(shape)), np.arange(size)
    rates = np.stack([find_rates(ask, n, shape, tokens, size) for n in nodes], axis=1)
    if walks:
        others = itertools.product(every, repeat=len(shape) - 1)
        winners = [np.array([(*other, last) for last in every]) for other in others]
        cells = [(np.zeros(tokens.shape, int), np.full(tokens.shape, GRID))]
    else:
        winners = [every[:, None].repeat(len(shape), axis=1)]
        edges = [find_edge(ask, n, shape, tokens, size) for n in nodes[1:]]
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
        yield Boxes(
            ends=((first, far), (last, near)),
            width=((high - low) / GRID).prod(axis=-1),
            shares=np.take_along_axis(share[None], winner[:, None, :, None], axis=-1)[..., 0],
        )


def find_edge(ask: Ask, node: int, shape: Shape, tokens: np.ndarray, size: int) -> np.ndarray:
    """Return [R]: how many values of its uniform accept a node, once it is asked."""
    uniforms = np.tile(stand_at(shape[node], shape, tokens), (size, 1, 1))
    clocks = np.ones((size, *tokens.shape, size))

    def accepted(points: np.ndarray) -> np.ndarray:  # [V R]
        uniforms[..., node] = points / GRID
        said = ask(uniforms, clocks)
        path, num_accepted = np.asarray(said.path), np.asarray(said.num_accepted)
        taken = np.arange(path.shape[-1]) <= num_accepted[..., None]
        return ((path == node) & taken).any(axis=-1)

    return count(accepted, (len(tokens),), at_once=size)


def find_rates(ask: Ask, node: int, shape: Shape, tokens: np.ndarray, size: int) -> np.ndarray:
    """Return [R, V]: the rates of the race after a node, 1 for the likeliest token.

    On the way to the node every race is won by the drafted token: a rule that walks needs it.
    """
    way, every = path_to(node, shape), np.arange(size)
    uniforms = np.tile(stand_at(node, shape, tokens), (size, 1, 1))

    def winner(clocks: np.ndarray) -> np.ndarray:  # [V R V], alike after every node
        clocks = clocks[:, :, None].repeat(len(shape), axis=2)
        for step, child in itertools.pairwise(way):
            clocks[:, :, step] = np.where(tokens[:, child, None] == every, SOON, NEVER)
        return np.asarray(ask(uniforms, clocks).tokens[..., len(way) - 1])

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
    """Cut uniforms at their edges and into parts; yield where each cell [R, N] begins, ends."""
    bounds = np.linspace(0, GRID, parts + 1).astype(int)

    def pieces(edge: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        none, all_ = np.zeros_like(edge), np.full_like(edge, GRID)
        sides = itertools.product(itertools.pairwise(bounds), ((none, edge), (edge, all_)))
        return [(np.clip(a, low, high), np.clip(b, low, high)) for (low, high), (a, b) in sides]

    for chosen in itertools.product(*(pieces(edge) for edge in edges)):
        low, high = np.zeros(shape, int), np.full(shape, GRID)  # the root's may be anything
        for node, (begin, end) in enumerate(chosen, start=1):
            low[:, node], high[:, node] = begin, end
        yield low, high


def count(
    holds: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], at_once: int
) -> np.ndarray:
    """Count the grid points at which something holds that holds at the lower ones only.

    ``holds`` is asked about ``at_once`` points at a time, [at_once, *shape], in order.
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


def stand_at(node: int, shape: Shape, tokens: np.ndarray) -> np.ndarray:
    """Return uniforms [R, N] that accept the path to a node and, if possible, nothing else."""
    uniforms = np.full(tokens.shape, LAST)
    uniforms[:, path_to(node, shape)] = 0.0
    return uniforms


def path_to(node: int, shape: Shape) -> list[int]:
    """List the nodes from the root to a node, both included."""
    path = [node]
    while path[-1] > 0:
        path.append(shape[path[-1]])
    return path[::-1]
