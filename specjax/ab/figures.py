"""Figures of a comparison: gains, predictions against measurements, acceptance by position."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes

from specjax.ab.compare import Comparison, by_load
from specjax.ab.findings import Findings, rows
from specjax.ab.records import Unit
from specjax.core.metrics import SpecDecodeCounters
from specjax.viz.acceptance_by_position import Drafts, acceptance_by_position
from specjax.viz.gains import Gain, gains, predicted_against_measured


def pictures(found: Findings) -> Iterator[Axes]:
    """Yield the figures of a comparison, the gains of arms over their own bases first."""
    shown, bases = list(rows(found)), found.bases
    within = [one.own for one in shown if one.measures.arm not in bases.labels]
    several = bases.several
    yield from picture_of_gains(within, "Gains within each engine" if several else None)
    if several:
        over_first = [one.first or one.own for one in shown]
        yield from picture_of_gains(over_first, f"Gains over {bases.first}")
    predicted = [
        (one.arm.arm, why.speedup, one.tpot_gain)
        for one, why in zip(found.comparisons, found.why, strict=True)
        if why is not None and why.speedup is not None and one.tpot_gain is not None
    ]
    if predicted:
        yield predicted_against_measured(predicted)[1]
    units = by_load(found.log.units)
    for one in found.measures:
        counted = one.counters
        if counted is not None and counted.num_drafts:
            yield acceptance_by_position(
                counted.num_accepted_tokens_per_pos,
                counted.num_drafts,
                drafts=drafts_of(units[one.dataset, one.concurrency][one.arm], counted),
                title=f"{one.arm}: {one.dataset}, load {one.concurrency or 'open'}",
            )[1]


def picture_of_gains(compared: Sequence[Comparison | None], title: str | None) -> Iterator[Axes]:
    """Yield the figure of some comparisons' gains, if there is one to draw."""
    shown = [
        Gain(
            f"{one.arm.dataset}, {one.base.concurrency or 'open'}",
            f"{one.arm.arm} over {one.base.arm}",
            one.tpot_gain,
            one.tps_gain,
        )
        for one in compared
        if one is not None and one.tpot_gain is not None and one.tps_gain is not None
    ]
    if shown:
        yield gains(shown, title=title)[1]


def drafts_of(units: Sequence[Unit], counted: SpecDecodeCounters) -> Drafts | None:
    """Return every draft that was counted, and whose it was; None if requests do not tell."""
    requests = [one for unit in units for one in unit.requests if one.accepted is not None]
    accepted = [number for one in requests for number in one.accepted or ()]
    drafted = [number for one in requests for number in one.drafted or ()]
    depth = len(counted.num_accepted_tokens_per_pos)
    if SpecDecodeCounters.zeros(depth).add(drafted, accepted) != counted:
        return None
    whose = np.repeat(np.arange(len(requests)), [len(one.accepted or ()) for one in requests])
    return Drafts(np.array(accepted), whose)
