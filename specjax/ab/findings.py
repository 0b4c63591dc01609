"""What a log of a comparison shows: metrics of every arm, gains over its bases, predictions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from specjax.ab.bases import Bases, choose_bases
from specjax.ab.compare import Comparison, by_load, compare
from specjax.ab.measures import Measures, measure
from specjax.ab.prediction import explained
from specjax.ab.records import Log, Unit
from specjax.traces.explain import Explanation


class Findings(NamedTuple):
    """Metrics and comparisons derived from a log."""

    log: Log
    bases: Bases
    measures: tuple[Measures, ...]
    comparisons: tuple[Comparison, ...]
    why: tuple[Explanation | None, ...]  # of each comparison


class Row(NamedTuple):
    """One arm at one load on one dataset, with its gains."""

    measures: Measures
    own: Comparison | None  # over the base of its engine; None for the first base
    first: Comparison | None  # over the first base; None where that is its own, or not measured


def find(log: Log, chosen: Sequence[str] = ()) -> Findings:
    """Return the metrics of a log, and each arm's comparisons with its own base and the first.

    Raises:
        ValueError: the log is empty, or ``chosen`` are no bases of it (``choose_bases``).
    """
    if not log.units:
        raise ValueError("the log has no measured block yet: give the same command to go on.")
    arms = log.manifest["arms"]
    bases, kinds = choose_bases(arms, chosen), {arm["label"]: arm["kind"] for arm in arms}
    slo, greedy = log.manifest["wanted"]["plan"]["slo"], log.manifest["ask"]["temperature"] == 0
    measures, comparisons, why = [], [], []
    for at_load in by_load(log.units).values():
        known = {one: (measure(at_load[one], slo), at_load[one]) for one in kinds if one in at_load}
        measures += [found for found, _ in known.values()]
        for base, arm in pairs(known, bases):
            comparisons.append(compare(known[base], known[arm], greedy=greedy))
            one_engine = base == bases.own[arm] and kinds[base] == kinds[arm]
            found, units = known[arm]
            why.append(explained(known[base][1], units, found) if one_engine else None)
    return Findings(log, bases, tuple(measures), tuple(comparisons), tuple(why))


def pairs(
    known: Mapping[str, tuple[Measures, Sequence[Unit]]], bases: Bases
) -> Iterator[tuple[str, str]]:
    """Yield (base, arm) of every comparison at one load, an arm's own base before the first."""
    for arm in known:
        for base in dict.fromkeys((bases.own[arm], bases.first)):
            if base in known and base != arm:
                yield base, arm


def rows(found: Findings) -> Iterator[Row]:
    """Yield every arm at every load with its gains, each load's first base first."""
    by_arms = {
        (one.arm.dataset, one.arm.concurrency, one.arm.arm, one.base.arm): one
        for one in found.comparisons
    }
    loads: dict[tuple[str, int], list[Measures]] = {}
    for one in found.measures:
        loads.setdefault((one.dataset, one.concurrency), []).append(one)
    for load, measures in loads.items():
        for one in sorted(measures, key=lambda one: one.arm != found.bases.first):
            base, first = found.bases.own[one.arm], found.bases.first
            own = by_arms.get((*load, one.arm, base))
            over_first = None if base == first else by_arms.get((*load, one.arm, first))
            yield Row(one, own, over_first)
