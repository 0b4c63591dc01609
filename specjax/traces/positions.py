"""Acceptance measured from a log, by position, with censoring.

A rejection ends its draft, so the positions after it were never judged (they are censored), and a
short draft never had them. Accepted over *judged* is therefore the estimate of a chance;
accepted over drafted, or over drafts, is a property of the run.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from specjax.core.metrics import SpecDecodeCounters
from specjax.theory.arrays import Scalar, Value, require
from specjax.theory.intervals import Interval, acceptance_ci, acceptance_ci_clustered
from specjax.traces.events import Trace


class Positions(NamedTuple):
    """Acceptance at draft position 1 .. K."""

    drafted: Int[np.ndarray, "K"]  # drafts long enough to have this position
    judged: Int[np.ndarray, "K"]  # of them, those that accepted every position before
    accepted: Int[np.ndarray, "K"]  # of them, those that accepted this one
    conditional: Interval  # [K] accepted / judged; NaN where nothing was judged
    marginal: Interval  # [K] accepted / drafts: vLLM's rate, low where drafts are short
    survival: Float[np.ndarray, "K"]  # product of the conditionals (Kaplan & Meier 1958)


def counters(trace: Trace) -> SpecDecodeCounters:
    """Return the log's counters, as the engine counts."""
    steps = trace.where(trace.rounds)
    return SpecDecodeCounters.zeros(trace.depth).add(
        steps.drafted.tolist(), steps.accepted.tolist()
    )


def share(part: Value, whole: Value, request: Value, level: Scalar = 0.95) -> Interval:
    """Return sum(part) / sum(whole) over steps, 0 <= part <= whole, with a clustered interval.

    Requests are the clusters; in a log of one request, its steps. Where all clusters agree the
    linearised variance is 0, so the interval is never narrower than Wilson's.
    Raises ValueError where ``whole`` sums to 0.
    """
    total, hits = float(np.sum(whole)), float(np.sum(part))
    require("the number of tokens or drafts counted", total, 1)
    plain = acceptance_ci(hits, total, level=level)
    clusters = request if len(np.unique(request)) > 1 else np.arange(len(request))
    if len(clusters) < 2:
        return Interval(*(float(one) for one in plain))
    wide = acceptance_ci_clustered(whole, part, clusters, level=level)
    low, high = min(plain.low, wide.low), max(plain.high, wide.high)
    return Interval(float(plain.estimate), float(low), float(high))


def judged_tokens(trace: Trace):
    """Return each step's number of judged draft tokens: the accepted ones and one rejected."""
    return trace.accepted + (trace.accepted < trace.drafted)


def alpha(trace: Trace, level: Scalar = 0.95) -> Interval:
    """Return the estimate of alpha, the chance that a draft token is accepted: accepted / judged.

    The maximum of the likelihood of a geometric distribution whose full drafts are censored. Not
    accepted / drafted, which counts what stood behind a rejection. Raises ValueError if nothing
    was drafted.
    """
    return share(trace.accepted, judged_tokens(trace), trace.request, level)


def by_position(trace: Trace, level: Scalar = 0.95) -> Positions:
    """Return the acceptance at every draft position. Raises ValueError without drafts."""
    drafts = trace.where(trace.drafted > 0)
    require("the number of drafts", len(drafts.step), 1)
    place = np.arange(trace.depth)[:, None]
    there = drafts.drafted[None] > place
    judged = there & (drafts.accepted[None] >= place)
    accepted = drafts.accepted[None] > place
    nothing = Interval(np.nan, np.nan, np.nan)
    conditional = [
        share(hit, seen, drafts.request, level) if seen.any() else nothing
        for hit, seen in zip(accepted, judged, strict=True)
    ]
    marginal = [share(hit, np.ones_like(hit), drafts.request, level) for hit in accepted]
    chances = stack(conditional)
    return Positions(
        there.sum(axis=1),
        judged.sum(axis=1),
        accepted.sum(axis=1),
        chances,
        stack(marginal),
        np.cumprod(np.nan_to_num(chances.estimate)),
    )


def stack(intervals: Sequence[Interval]) -> Interval:
    """Return one interval of arrays [K]."""
    estimate, low, high = np.array(intervals).T
    return Interval(estimate, low, high)
