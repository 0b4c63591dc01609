"""Several drafts for one position: acceptance of recursive rejection, and of any exact rule.

p is the target's distribution, q the draft's [V]; k tokens are drawn from q and at most one is
accepted.
"""

import itertools

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack

from specjax.theory.arrays import Real, Scalar, Value, require, require_distributions, require_numpy

MOST_OUTCOMES = 200_000  # draft tuples that are enumerated


def multi_draft_acceptance(p: Real, q: Real, k: Scalar, replacement: bool = True) -> Value:
    """Return the chance that one of k drafted siblings is accepted, trying one after the other.

    Recursive rejection: accept x with chance min(1, p(x) / q(x)), else p <- norm(max(p - q, 0)).
    With replacement (SpecInfer, Miao et al. 2024, arXiv 2305.09781) all are drawn from q; without
    (MCSD, Yang et al. 2024, arXiv 2401.06706) q loses the rejected token and is renormalised.
    Exact: the recursion enumerates rejected tokens, V^(k-1) of them without replacement. k = 1 is
    sum min(p, q). NumPy only: no gradient.
    Raises ValueError for rows that are no distributions, k < 1, or more tuples than can be
    enumerated, TypeError under a JAX transformation.
    """
    require_numpy(p=p, q=q, k=k)
    p, q, k = check(p, q, k)
    if not replacement:
        require_outcomes(p.size ** (k - 1))
        return 1.0 - rejected_without_replacement(p, q, k)
    rejected = 1.0
    for _ in range(k):
        accepted = np.minimum(p, q).sum()
        rejected *= 1.0 - accepted
        p = left_over(p, q)
    return 1.0 - rejected


def rejected_without_replacement(p: Value, q: Value, k: int) -> float:
    """Return the chance that all of k distinct drafts are rejected."""
    if k == 0 or q.sum() == 0:
        return 1.0
    refused = np.maximum(q - p, 0.0)  # drafted and refused: q (1 - min(1, p / q))
    if k == 1:
        return float(refused.sum())
    total, after = 0.0, left_over(p, q)
    for x in np.flatnonzero(refused):
        rest = q.copy()
        rest[x] = 0.0
        mass = rest.sum()
        total += refused[x] * rejected_without_replacement(
            after, rest / mass if mass > 0 else rest, k - 1
        )
    return total


def left_over(p: Value, q: Value) -> Value:
    """Return norm(max(p - q, 0)), or p where nothing is left."""
    left = np.maximum(p - q, 0.0)
    mass = left.sum()
    return left / mass if mass > 0 else p


def optimal_transport_acceptance(p: Real, q: Real, k: Scalar, replacement: bool = True) -> Value:
    """Return the greatest chance, over all exact rules, that the token emitted was drafted.

    SpecTr (Sun et al. 2023, arXiv 2310.15141): transport from the distribution of the set of k
    drafts to p, so that as much mass as possible lands on a drafted token; a linear program over
    (set, token in it). No exact rule accepts more. Raises as ``multi_draft_acceptance`` does.
    """
    p, q, k = check(p, q, k)
    sets = draft_sets(q, k, replacement)
    pairs = [(i, y) for i, members in enumerate(sets) for y in members]
    rows, tokens = (np.array(one) for one in zip(*pairs, strict=True))
    columns, ones = np.arange(len(pairs)), np.ones(len(pairs))
    sources = csr_array((ones, (rows, columns)), shape=(len(sets), len(pairs)))
    sinks = csr_array((ones, (tokens, columns)), shape=(p.size, len(pairs)))
    found = linprog(
        -ones,
        A_ub=vstack([sources, sinks]),
        b_ub=np.concatenate([list(sets.values()), p]),
        method="highs",
    )
    return -found.fun


def draft_sets(q: Value, k: int, replacement: bool) -> dict[tuple[int, ...], float]:
    """Return the distribution of the set of k drafts: {sorted distinct tokens: probability}."""
    support = np.flatnonzero(q).tolist()
    require_outcomes(len(support) ** k)
    sets: dict[tuple[int, ...], float] = {}
    for draws in itertools.product(support, repeat=k):
        chance, left = 1.0, 1.0
        for i, x in enumerate(draws):
            if replacement:
                chance *= q[x]
            elif x in draws[:i]:
                chance = 0.0
            elif left > 0:
                chance *= q[x] / left
                left -= q[x]
        members = tuple(sorted(set(draws)))
        if chance > 0:
            sets[members] = sets.get(members, 0.0) + chance
    return sets


def check(p: Real, q: Real, k: Scalar):
    """Validate the arguments and return the distributions as float64 arrays [V], k as an int."""
    require_distributions(p=p, q=q)
    require("k", k, 1)
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    if p.ndim != 1 or p.shape != q.shape:
        shapes = f"{p.shape} and {q.shape}"
        raise ValueError(f"p and q must be one distribution [V] each, got shapes {shapes}")
    return p / p.sum(), q / q.sum(), int(k)


def require_outcomes(count: int) -> None:
    """Raise ValueError if too much would have to be enumerated."""
    if count > MOST_OUTCOMES:
        raise ValueError(f"{count} outcomes to enumerate, at most {MOST_OUTCOMES}: lower V or k")
