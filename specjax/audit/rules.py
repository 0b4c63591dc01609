"""The shipped rules, audited: what they promise, and what enumeration finds."""

from typing import NamedTuple

import numpy as np

from specjax.audit.boxes import path_to
from specjax.audit.cases import random_cases
from specjax.audit.exact import exact_law
from specjax.audit.fresh import reused
from specjax.audit.prefixes import transport_bound
from specjax.types import Rule
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
    """What was found about one rule. Means are over cases."""

    name: str
    law: str
    tv: float  # mean total variation between texts and the target's own
    expected_length: float  # mean number of tokens per round
    cases: int
    worst_tv: float  # with its error
    stray: float  # largest probability of texts that the target never writes
    reused: float  # share of rounds whose noise was not all new
    shape: tuple[int, ...]  # parents of the draft's nodes

    @property
    def kept(self) -> bool:
        """Whether the rule keeps its promise."""
        return self.law == LOSSY or (self.worst_tv < ROUNDING and self.stray == self.reused == 0)


class Audit(NamedTuple):
    """All rules on the same chains, and what no exact rule can surpass on them."""

    rows: tuple[Audited, ...]
    bound: float  # of the mean expected length


def audit_rules(cases: int = 110) -> Audit:
    """Audit every shipped rule on chains of K tokens, and the tree rule on siblings too."""
    chain = tuple(max(node - 1, 0) for node in range(K + 1))
    p_tree, q_tree = random_cases(cases, SIZE, K)
    small = random_cases(cases, SIZE - 1, 2)
    rows = [audit(name, law, rule, p_tree, q_tree, chain) for name, (law, rule) in RULES.items()]
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
    """Audit one rule on drafts of one shape."""
    depth = max(len(path_to(node, shape)) for node in range(len(shape))) - 1
    law = exact_law(rule, p_tree, q_tree, depth, parents=shape, replacement=replacement)
    return Audited(
        name=name,
        law=promise,
        tv=float(law.tv.mean()),
        expected_length=float(law.expected_length.mean()),
        cases=len(law.tv),
        worst_tv=float((law.tv + law.doubt).max()),
        stray=float(law.stray.max()),
        reused=reused(rule, parents=shape),
        shape=shape,
    )
