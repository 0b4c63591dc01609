"""Audit the shipped rules: the promise of each and the distribution that enumeration finds."""

from typing import NamedTuple

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


def audit_rules(cases: int = 110) -> Audit:
    """Return the findings on every shipped rule on chains, and on the tree rule on trees."""
    chain = tuple(max(node - 1, 0) for node in range(K + 1))
    p_tree, q_tree = random_cases(cases, SIZE, K)
    small = random_cases(cases, SIZE - 1, 2)
    rows = [
        audit(name, promise, rule, p_tree, q_tree, chain) for name, (promise, rule) in RULES.items()
    ]
    for what, replacement in (("siblings", True), ("distinct siblings", False)):
        name = f"rejection_tree, {what}"
        rows.append(audit(name, EXACT, rejection_tree, *small, TREE, replacement=replacement))
    return Audit(tuple(rows), float(transport_bound(p_tree, q_tree, K).mean()))


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
