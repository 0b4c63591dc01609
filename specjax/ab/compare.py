"""Compare an arm with the base on the same prompts: gains with intervals, equal texts, accuracy.

Intervals are bootstraps of the ratio: prompts are drawn with replacement, both arms' requests of a
prompt together, and the logarithm is studentized (bootstrap-t, Efron & Tibshirani 1993, ch. 12),
since percentile intervals of few and different prompts are too narrow. Student's t interval is used
where it is wider.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Num
from scipy import stats

from specjax.ab.measures import Measures, tpot
from specjax.ab.records import Record, Unit
from specjax.audit.greedy import first_difference
from specjax.theory.intervals import Interval

RESAMPLES = 4000
FEW = 8  # prompts: with fewer a bootstrap sample often has no variance; then Student's t is used


class Equality(NamedTuple):
    """How many greedy texts are equal, and where the others first differ."""

    compared: int
    equal: int
    differ: tuple[tuple[str, int], ...]  # (prompt, tokens in common); -1: only hashes to compare


class Accuracy(NamedTuple):
    """The accuracy of both on the same questions, with McNemar's exact test (1947)."""

    base: float
    arm: float
    won: int  # right only with the arm
    lost: int  # right only with the base
    p: float


class Comparison(NamedTuple):
    """One arm compared with the base, at one load on one dataset."""

    base: Measures
    arm: Measures
    num_pairs: int  # prompts that both answered
    tpot_gain: Interval | None  # base / arm
    tps_gain: Interval | None  # arm / base
    equality: Equality | None  # greedy only
    accuracy: Accuracy | None


def by_load(units: Sequence[Unit]) -> dict[tuple[str, int], dict[str, list[Unit]]]:
    """Return the units by (dataset, concurrency) and by arm, in the order of the log."""
    found: dict[tuple[str, int], dict[str, list[Unit]]] = defaultdict(lambda: defaultdict(list))
    for unit in units:
        found[unit.dataset, unit.concurrency][unit.arm].append(unit)
    return found


def compare(
    base: tuple[Measures, Sequence[Unit]],
    arm: tuple[Measures, Sequence[Unit]],
    *,
    greedy: bool,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Return the comparison of one arm's units with the base's, prompt by prompt."""
    ours, theirs = by_prompt(arm[1]), by_prompt(base[1])
    names = [name for name in theirs if name in ours]
    pairs = [(theirs[name], ours[name]) for name in names]
    return Comparison(
        base=base[0],
        arm=arm[0],
        num_pairs=len(pairs),
        tpot_gain=tpot_gain(pairs, level, seed),
        tps_gain=tps_gain(pairs, base[0], arm[0], level, seed),
        equality=equality(names, pairs) if greedy else None,
        accuracy=accuracy(pairs),
    )


def by_prompt(units: Sequence[Unit]) -> dict[str, list[Record]]:
    """Return the successful requests by prompt, which is the cluster of the intervals."""
    found: dict[str, list[Record]] = defaultdict(list)
    for unit in units:
        for one in unit.requests:
            if one.error is None:
                found[one.prompt].append(one)
    return found


Pairs = Sequence[tuple[Sequence[Record], Sequence[Record]]]


def tpot_gain(pairs: Pairs, level: float, seed: int) -> Interval | None:
    """Return the base's mean TPOT over the arm's; None if no request has one."""
    totals = []
    for sides in pairs:
        found = [[value for one in side if (value := tpot(one)) is not None] for side in sides]
        if all(found):
            totals.append([total for side in found for total in (sum(side), len(side))])
    if not totals:
        return None
    return bootstrap(np.array(totals, np.float64).T, level, seed)


def tps_gain(
    pairs: Pairs, base: Measures, arm: Measures, level: float, seed: int
) -> Interval | None:
    """Return the arm's throughput over the base's.

    A run's throughput is occupancy times tokens per second of a request; the occupancy (requests
    under way, Little 1961) is each run's own and stays fixed while prompts are drawn.
    """
    if not pairs:
        return None
    table = np.array(
        [
            [
                total
                for side in (ours, theirs)
                for total in (sum(o.output_tokens for o in side), sum(o.times[-1] for o in side))
            ]
            for theirs, ours in pairs
        ],
        np.float64,
    ).T
    return bootstrap(table, level, seed, arm.occupancy / base.occupancy)


def bootstrap(
    table: Float[np.ndarray, "4 n"], level: float, seed: int, factor: float = 1.0
) -> Interval:
    """Return factor * (a / b) / (c / d) with its interval; NaN bounds from a single prompt.

    ``table`` [(a, b, c, d), n]: what each of n prompts adds to the four sums.
    """
    signs, size = np.array([1.0, -1.0, -1.0, 1.0]), table.shape[1]
    sums = table.sum(axis=1)
    value = float(signs @ np.log(sums))
    if size < 2:
        return Interval(factor * math.exp(value), np.nan, np.nan)
    spread, tails = deviation(table, sums[None], np.ones((1, size)), signs)[0], (1 - level) / 2
    students = stats.t.ppf([1 - tails, tails], size - 1)
    if size >= FEW:
        weights = np.random.default_rng(seed).multinomial(size, [1 / size] * size, RESAMPLES)
        drawn = weights @ table.T  # [R, 4]
        spreads = deviation(table, drawn, weights, signs)
        some = spreads > 0  # not one prompt drawn again and again
        drawn = (np.log(drawn[some]) @ signs - value) / spreads[some] if some.any() else [0.0]
        high, low = np.quantile(drawn, [1 - tails, tails])
        students = np.array([max(students[0], high), min(students[1], low)])
    ends = value - students * spread
    return Interval(factor * math.exp(value), *(factor * np.exp(ends)).tolist())


def deviation(
    table: Float[np.ndarray, "4 n"],
    sums: Float[np.ndarray, "R 4"],
    weights: Num[np.ndarray, "R n"],
    signs: Float[np.ndarray, "4"],
) -> Float[np.ndarray, "R"]:
    """Return the linearised standard deviation of each draw's log ratio."""
    influence = (signs / sums) @ table  # [R, n]; its weighted sum is 0
    size = table.shape[1]
    return np.sqrt(size / (size - 1) * (weights * influence**2).sum(axis=1))


def equality(names: Sequence[str], pairs: Pairs) -> Equality:
    """Return how greedy texts agree, by token ids where both have them and else by hash."""
    differ = []
    for name, (theirs, ours) in zip(names, pairs, strict=True):
        one, two = theirs[0], ours[0]
        if one.tokens is not None and two.tokens is not None:
            if one.tokens != two.tokens:
                differ.append((name, first_difference(one.tokens, two.tokens)))
        elif one.text_sha256 != two.text_sha256:
            differ.append((name, -1))
    return Equality(len(names), len(names) - len(differ), tuple(differ))


def accuracy(pairs: Pairs) -> Accuracy | None:
    """Return both accuracies, each question counted once; None without graded answers."""
    graded = [
        (theirs[0].correct, ours[0].correct)
        for theirs, ours in pairs
        if theirs[0].correct is not None and ours[0].correct is not None
    ]
    if not graded:
        return None
    won = sum(two and not one for one, two in graded)
    lost = sum(one and not two for one, two in graded)
    p = float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0
    base, arm = (sum(side) / len(graded) for side in zip(*graded, strict=True))
    return Accuracy(base, arm, won, lost, p)
