"""Audit the shipped rules: the promise of each and the distribution that enumeration finds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.audit.cases import random_cases
from specjax.audit.exact import exact_distribution
from specjax.audit.noise_partition import path_to
from specjax.audit.noise_reuse import noise_reuse_rate
from specjax.audit.prefixes import transport_bound
from specjax.core.types import Rule
from specjax.verify.block import block
from specjax.verify.entropy import entropy
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree
from specjax.verify.synthetic import synthetic
from specjax.verify.typical import typical
from specjax.verify.walk import walk

LOSSLESS, EXACT, LOSSY = "lossless", "exact", "lossy"
ROUNDING = 1e-6  # what float32 may do to an exact rule
SIZE, K, TREE = 4, 3, (0, 0, 0, 1, 1)
PART = 110  # cases of one batch
RULES = {
    "walk": (LOSSLESS, walk),
    "rejection": (EXACT, rejection),
    "rejection_tree": (EXACT, rejection_tree),
    "block": (EXACT, block),
    "typical": (LOSSY, typical()),
    "entropy": (LOSSY, entropy()),
    "synthetic": (LOSSY, synthetic((0.7,) * K)),
}


class Audited(NamedTuple):
    """The findings on one rule; means are over cases."""

    name: str
    promise: str  # what the rule promises: LOSSLESS, EXACT or LOSSY
    tv: float  # mean total variation between emitted texts and the target's own
    expected_length: float  # mean number of tokens per round
    cases: int
    worst_tv: float  # largest, its error added
    stray: float  # largest probability of texts that have probability 0 for the target
    reused: float  # ``noise_reuse_rate``
    shape: tuple[int, ...]  # parents of the draft's nodes

    @property
    def kept(self) -> bool:
        """Whether the rule keeps its promise."""
        return self.promise == LOSSY or (
            self.worst_tv < ROUNDING and self.stray == self.reused == 0
        )


class Audit(NamedTuple):
    """The findings on all rules, and the largest expected length that any exact rule could have."""

    rows: tuple[Audited, ...]
    bound: float  # on the mean expected length


def audit_rules(cases: int = PART) -> Audit:
    """Return the findings on every shipped rule on chains, and on the tree rule on trees."""
    return join([audit_part(part, cases) for part in range(num_parts(cases))])


def num_parts(cases: int) -> int:
    """Return the number of parts in which so many cases are audited."""
    return -(-cases // PART)


def audit_part(part: int, cases: int) -> Audit:
    """Return the findings on one part of the cases, which are drawn from its number."""
    own = min(PART, cases - part * PART)
    chain = tuple(max(node - 1, 0) for node in range(K + 1))
    p_tree, q_tree = random_cases(own, SIZE, K, seed=part)
    small = random_cases(own, SIZE - 1, 2, seed=part)
    rows = [
        audit(name, promise, rule, p_tree, q_tree, chain) for name, (promise, rule) in RULES.items()
    ]
    for what, replacement in (("siblings", True), ("distinct siblings", False)):
        name = f"rejection_tree, {what}"
        rows.append(audit(name, EXACT, rejection_tree, *small, TREE, replacement=replacement))
    return Audit(tuple(rows), float(transport_bound(p_tree, q_tree, K).mean()))


def join(parts: Sequence[Audit]) -> Audit:
    """Return the findings on the cases of all parts together."""
    weights = np.asarray([part.rows[0].cases for part in parts], np.float64)

    def mean(values: Iterable[float]) -> float:
        return float(np.average(np.asarray(list(values), np.float64), weights=weights))

    rows = [
        same[0]._replace(
            tv=mean(row.tv for row in same),
            expected_length=mean(row.expected_length for row in same),
            cases=sum(row.cases for row in same),
            worst_tv=max(row.worst_tv for row in same),
            stray=max(row.stray for row in same),
            reused=max(row.reused for row in same),
        )
        for same in zip(*(part.rows for part in parts), strict=True)
    ]
    return Audit(tuple(rows), mean(part.bound for part in parts))


def to_json(found: Audit) -> dict[str, Any]:
    """Return findings as JSON values."""
    return {"rows": [row._asdict() for row in found.rows], "bound": found.bound}


def from_json(value: Mapping[str, Any]) -> Audit:
    """Return the findings of ``to_json``."""
    rows = (Audited(**{**row, "shape": tuple(row["shape"])}) for row in value["rows"])
    return Audit(tuple(rows), value["bound"])


def audit(
    name: str,
    promise: str,
    rule: Rule,
    p_tree: np.ndarray,
    q_tree: np.ndarray,
    shape: tuple[int, ...],
    *,
    replacement: bool = True,
) -> Audited:
    """Return the findings on one rule, for drafts of one shape."""
    depth = max(len(path_to(node, shape)) for node in range(len(shape))) - 1
    found = exact_distribution(rule, p_tree, q_tree, depth, parents=shape, replacement=replacement)
    return Audited(
        name=name,
        promise=promise,
        tv=float(found.tv.mean()),
        expected_length=float(found.expected_length.mean()),
        cases=len(found.tv),
        worst_tv=float((found.tv + found.doubt).max()),
        stray=float(found.stray.max()),
        reused=noise_reuse_rate(rule, parents=shape),
        shape=shape,
    )
