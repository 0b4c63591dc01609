"""What is known of a vector of exponential numbers after races among them, and how likely it is.

A sample of the weights w is the token whose E_i / w_i is the least: a race. Its outcome says that
E_i * w_j <= E_j * w_i for all j, which are half-spaces through the origin. Independent exponential
numbers divided by their sum are uniform in the simplex, so that the probability of any outcomes
together, of races with any weights among the *same* numbers, is the volume of a polytope in it.
It is kept as a list of small simplices, and cut exactly.
"""

from typing import NamedTuple

import numpy as np

TIE = 1e-13  # a vertex so close to a cutting plane lies in it
FLAT = 1e-18  # the volume below which a simplex is dropped


class Region(NamedTuple):
    """A part of the simplex of V exponential numbers whose sum is 1."""

    simplices: np.ndarray  # [S, V, V] vertices
    volumes: np.ndarray  # [S] as parts of the whole simplex

    @property
    def mass(self) -> float:
        """The probability of the region."""
        return float(self.volumes.sum())


def region_of(simplices: np.ndarray) -> Region:
    """Return the region of these simplices, without the flat ones."""
    volumes = abs(np.linalg.det(simplices))
    return Region(simplices[volumes > FLAT], volumes[volumes > FLAT])


def whole(size: int) -> Region:
    """Return the region of ``size`` numbers of which nothing is known."""
    return region_of(np.eye(size)[None])


def below(simplices: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Return the part of the simplices where ``E @ normal <= 0``.

    A simplex with vertices on both sides is split in two at a point of the edge between them,
    until none is left.
    """
    kept, normal = [simplices[:0]], normal / abs(normal).max()
    while len(simplices):
        side = simplices @ normal
        side = np.where(abs(side) < TIE, 0.0, side)
        above = (side > 0).any(axis=1)
        crossed = above & (side < 0).any(axis=1)
        kept.append(simplices[~above])
        simplices, side, rows = simplices[crossed], side[crossed], np.arange(crossed.sum())
        high, low = side.argmax(axis=1), side.argmin(axis=1)
        share = side[rows, high] / (side[rows, high] - side[rows, low])
        start, end = simplices[rows, high], simplices[rows, low]
        middle = start + share[:, None] * (end - start)
        halves = np.stack([simplices, simplices])
        halves[0, rows, high], halves[1, rows, low] = middle, middle
        simplices = halves.reshape(-1, *halves.shape[2:])
    return np.concatenate(kept)


def won_by(region: Region, weights: np.ndarray, token: int, taken: tuple[int, ...]) -> Region:
    """Return the part of a region where ``token`` comes first of all tokens but those taken.

    Tokens of weight 0 come after all others, in the order of their ids.
    """
    rest = [i for i in range(len(weights)) if i not in taken]
    if weights[token] == 0:
        if token != rest[0] or weights[rest].any():
            return region_of(region.simplices[:0])
        return region
    simplices = region.simplices
    for other in rest:
        if other != token and weights[other] > 0:
            normal = np.zeros(len(weights))
            normal[token], normal[other] = weights[other], -weights[token]
            simplices = below(simplices, normal)
    return region_of(simplices)


def inner_points(region: Region) -> tuple[np.ndarray, np.ndarray]:
    """Return two points inside a region: of its largest simplex, and near a corner of its last."""
    largest, last = region.simplices[region.volumes.argmax()], region.simplices[-1]
    if region.volumes[-1] < region.volumes.max() / 1000:
        last = largest
    return largest.mean(axis=0), 0.05 * last.mean(axis=0) + 0.95 * last[0]


def random_point(region: Region, rng: np.random.Generator) -> np.ndarray:
    """Return a random point inside a region, not too close to its boundary."""
    which = rng.choice(len(region.volumes), p=region.volumes / region.mass)
    simplex = region.simplices[which]
    return 0.1 * simplex.mean(axis=0) + 0.9 * rng.dirichlet(np.ones(len(simplex))) @ simplex
