"""Published verifications on one axis: tokens per round, distance from the optimum and from p.

Every rule is enumerated (``exact``) on the same drafts: a chain of three tokens, three siblings, or
two paths of two. These are k paths of K tokens drawn independently from q, for which optimal
transport bounds what any exact rule brings.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from specjax.audit.exact import exact_distribution
from specjax.audit.prefixes import num_contexts, texts
from specjax.audit.published import greedy_multi_path, k_sequential, traversal
from specjax.audit.published_lossy import (
    fly,
    hierarchical,
    lenience,
    relaxed,
    spectr_gbv,
    target_only,
)
from specjax.audit.recorded import bundled_cases
from specjax.audit.rules import EXACT, LOSSLESS, LOSSY, ROUNDING
from specjax.core.types import Rule
from specjax.theory.multi_draft import optimal_transport_acceptance
from specjax.verify.block import block
from specjax.verify.entropy import entropy
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree
from specjax.verify.typical import typical
from specjax.verify.walk import walk

SIZE, CASES, DEPTH = 4, 12, 3
BUNDLED = "bundled"


class Shape(NamedTuple):
    """``paths`` chains of ``depth`` tokens from one root."""

    name: str
    paths: int
    depth: int

    @property
    def parents(self) -> tuple[int, ...]:
        """The parents of the nodes, level by level."""
        first = (0,) + (0,) * self.paths
        return first + tuple(range(1, 1 + self.paths * (self.depth - 1)))


SHAPES = CHAIN, SIBLINGS, PATHS = (
    Shape("chain of 3", 1, 3),
    Shape("3 siblings", 3, 1),
    Shape("2 paths of 2", 2, 2),
)


class Method(NamedTuple):
    """A published verification, on drafts of one shape."""

    name: str
    paper: str
    promise: str
    rule: Rule
    shape: Shape
    curve: str = ""  # of lossy ones: the option that is varied
    replacement: bool = True  # whether siblings are drawn with replacement


class Compared(NamedTuple):
    """A method's results, by family of distributions."""

    name: str
    paper: str
    promise: str
    drafts: str  # of which shape
    curve: str
    tokens: dict[str, float]  # per round, mean over cases
    tv: dict[str, float]  # of K + 1 tokens from the target's, mean over cases
    worst: float  # largest total variation and its error, over all families

    @property
    def kept(self) -> bool:
        """Whether an exact rule is exact here."""
        return self.promise == LOSSY or self.worst < ROUNDING

    @property
    def steps(self) -> int:
        """How many draft steps a round takes."""
        return next(one.depth for one in SHAPES if self.drafts.startswith(one.name))

    def per_cost(self, family: str, cost: float) -> float:
        """Return tokens per cost of a target pass, of which a draft step takes ``cost``."""
        return self.tokens[family] / (1 + cost * self.steps)


class Comparison(NamedTuple):
    """All methods, and the best that any exact rule could bring."""

    rows: tuple[Compared, ...]
    best: dict[str, dict[str, float]]  # tokens per round by drafts and family


def methods() -> tuple[Method, ...]:
    """Return the verifications that are compared, exact ones first."""
    both = tuple(
        Method(name, paper, EXACT, rule, shape)
        for shape in (SIBLINGS, PATHS)
        for name, paper, rule in (
            ("recursive rejection", "2305.09781", rejection_tree),
            ("k-sequential (SpecTr)", "2310.15141", k_sequential(shape.parents)),
            ("traversal", "2505.12398", traversal(shape.parents)),
            ("greedy multi-path", "2602.16961", greedy_multi_path(shape.parents)),
        )
    )
    distinct = tuple(
        Method(name, paper, EXACT, rule, shape, replacement=False)
        for shape in (SIBLINGS, PATHS)
        for name, paper, rule in (
            ("recursive rejection", "2402.14160", rejection_tree),
            ("traversal", "2505.12398", traversal(shape.parents)),
        )
    )
    return (
        Method("walk", "", LOSSLESS, walk, CHAIN),
        Method("rejection", "2211.17192", EXACT, rejection, CHAIN),
        Method("block", "2403.10444", EXACT, block, CHAIN),
        Method("traversal", "2505.12398", EXACT, traversal(CHAIN.parents), CHAIN),
        *both,
        *distinct,
        *lossy("lenience", "2211.17192", "l", lenience, (0.8, 0.6, 0.4, 0.2)),
        *lossy("typical", "2401.10774", "epsilon", typical_of, (0.6, 0.3, 0.09, 0.02)),
        *lossy("entropy", "vllm-ascend", "alpha", entropy_of, (0.2, 0.4, 0.8, 1.6)),
        *lossy("threshold_acc", "SGLang", "threshold", acc_of, (1.0, 0.7, 0.5, 0.3)),
        *lossy("threshold_single", "SGLang", "threshold", single_of, (0.8, 0.5, 0.3, 0.1)),
        *lossy("relaxed", "TensorRT-LLM", "delta", relaxed_of, (0.1, 0.3, 0.6, 0.9)),
        *lossy("FLy", "2511.22972", "entropy", fly_of, (1.0, 0.8, 0.6, 0.0)),
        Method("hierarchical, as coded", "2601.05724", LOSSY, hierarchical, CHAIN),
        *(
            Method("SpecTr-GBV, as coded", "2604.25925", LOSSY, spectr_gbv(shape.parents), shape)
            for shape in SHAPES
        ),
    )


def lossy(
    name: str, paper: str, option: str, rule: Callable[[float], Rule], values: tuple[float, ...]
) -> tuple[Method, ...]:
    """Return a family of lossy rules, one per value of its option."""
    return tuple(Method(name, paper, LOSSY, rule(v), CHAIN, f"{option} {v:g}") for v in values)


def typical_of(epsilon: float) -> Rule:
    """Return typical acceptance with Medusa's delta = sqrt(epsilon)."""
    return typical(epsilon, epsilon**0.5)


def entropy_of(alpha: float) -> Rule:
    """Return entropy-relaxed rejection."""
    return entropy(1.0, alpha)


def acc_of(threshold: float) -> Rule:
    """Return SGLang's rule with this ``threshold_acc``."""
    return target_only(1.0, threshold)


def single_of(threshold: float) -> Rule:
    """Return SGLang's rule with this ``threshold_single``."""
    return target_only(threshold, 1.0)


def relaxed_of(delta: float) -> Rule:
    """Return TensorRT-LLM's rule for its example's ten likeliest tokens, here all."""
    return relaxed(SIZE, delta)


def fly_of(threshold: float) -> Rule:
    """Return FLy with a window of two tokens, which must fit into a chain of three.

    So only the first token is ever overruled; cells of noise do not tell more such tokens apart.
    """
    return fly(threshold, 2)


Cases = dict[str, tuple[np.ndarray, np.ndarray]]


def random_families(num: int, seed: int = 0) -> Cases:
    """Return pairs (p_tree, q_tree) [num, C, V]: a draft that knows nothing, little, or much."""
    rng, contexts = np.random.default_rng(seed), num_contexts(SIZE, DEPTH)

    def draw(concentration: float) -> np.ndarray:
        return rng.dirichlet(np.full(SIZE, concentration), (num, contexts))

    p, noise, peaked = draw(1.0), draw(1.0), draw(0.3)
    return {
        "far": (p, noise),
        "near": (p, (p + noise) / 2),
        "peaked": (peaked, (3 * peaked + noise) / 4),
    }


def compare(cases: Cases | None = None) -> Comparison:
    """Return every method's results, and the optimum of each kind of drafts by family.

    Args:
        cases: families of pairs; random ones and the bundled pair's if None.
    """
    if cases is None:
        recorded = bundled_cases(CASES, SIZE, DEPTH)
        cases = {**random_families(CASES), BUNDLED: (recorded.p_tree, recorded.q_tree)}
    bounded = (CHAIN, True), (SIBLINGS, True), (PATHS, True), (SIBLINGS, False)
    best = {
        drafts_name(shape, replacement): {
            family: float(np.mean([
                paths_bound(p, q, shape, replacement) for p, q in zip(*pair, strict=True)
            ]))
            for family, pair in cases.items()
        }
        for shape, replacement in bounded
    }  # fmt: skip
    return Comparison(tuple(measure(method, cases) for method in methods()), best)


def measure(method: Method, cases: Cases) -> Compared:
    """Return one method's results; the cases of all families are enumerated together."""
    shape, contexts = method.shape, num_contexts(SIZE, method.shape.depth)
    p, q = (np.concatenate(trees)[:, :contexts] for trees in zip(*cases.values(), strict=True))
    found = exact_distribution(
        method.rule, p, q, shape.depth, parents=shape.parents, replacement=method.replacement
    )
    ends = np.cumsum([len(pair[0]) for pair in cases.values()])[:-1]

    def means(values: np.ndarray) -> dict[str, float]:
        parts = np.split(values, ends)
        return {name: float(part.mean()) for name, part in zip(cases, parts, strict=True)}

    return Compared(
        method.name, method.paper, method.promise, drafts_name(shape, method.replacement),
        method.curve, means(found.expected_length), means(found.tv),
        float((found.tv + found.doubt).max()),
    )  # fmt: skip


def drafts_name(shape: Shape, replacement: bool) -> str:
    """Return what drafts of a shape are called."""
    return shape.name if replacement else f"{shape.name}, distinct"


def paths_bound(
    p_tree: np.ndarray, q_tree: np.ndarray, shape: Shape, replacement: bool = True
) -> float:
    """Return a bound on any exact rule's tokens per round, for drafts of this shape [C, V].

    For each length i, the greatest chance that the target's first i tokens are among the drafts'
    (SpecTr's linear program, over words of i tokens); 1 for the token that is always emitted.
    """
    total = 1.0
    for length in range(1, shape.depth + 1):
        p, q = (texts(tree[None], length)[0] for tree in (p_tree, q_tree))
        total += float(optimal_transport_acceptance(p, q, shape.paths, replacement))
    return total
