"""Each tool's metrics from one log, with their denominators and intervals over requests.

The same run has an acceptance rate of 0.4 or 0.7 and a length of 2.1 or 3.1, depending on the
tool. Definitions as in vLLM's and SGLang's sources, the EAGLE paper (Li et al. 2024) and
AISBench's report; intervals take requests, not tokens, as independent.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats

from specjax.theory.arrays import Scalar, Value, require
from specjax.theory.intervals import Interval
from specjax.traces.events import Trace, end_of_requests
from specjax.traces.positions import alpha, by_position, counters, share


class Number(NamedTuple):
    """One metric as a tool prints it."""

    tool: str
    name: str
    value: float
    low: float
    high: float
    unit: str
    says: str  # numerator over denominator, in words


def convert(trace: Trace, level: Scalar = 0.95) -> tuple[Number, ...]:
    """Return every tool's metrics. Raises ValueError for a log without a round of speculation."""
    return (
        *to_vllm(trace, level),
        *to_sglang(trace, level),
        *to_eagle(trace, level),
        *to_aisbench(trace, level),
    )


def to_vllm(trace: Trace, level: Scalar = 0.95) -> tuple[Number, ...]:
    """Return vLLM's rates: per drafted token, and per step with a draft."""
    drafts = trace.where(trace.drafted > 0)
    counted = counters(trace)
    rate = share(drafts.accepted, drafts.drafted, drafts.request, level)
    length = lengths(drafts.accepted, drafts.request, trace.depth, level)
    marginal = by_position(trace, level).marginal
    formula = f"accepted {counted.num_accepted_tokens:,} / drafted {counted.num_draft_tokens:,}"
    return (
        number("vLLM", "acceptance rate", rate, "ratio", formula),
        number(
            "vLLM",
            "mean acceptance length",
            length,
            "tok",
            f"1 + accepted / {counted.num_drafts:,} steps that drafted",
        ),
        *(
            number(
                "vLLM",
                f"acceptance rate at position {i}",
                Interval(*(float(one[i]) for one in marginal)),
                "ratio",
                f"steps that accepted more than {i} / steps that drafted",
            )
            for i in range(trace.depth)
        ),
    )


def to_sglang(trace: Trace, level: Scalar = 0.95) -> tuple[Number, ...]:
    """Return SGLang's metrics: its length counts every verification, also of an empty draft.

    What ``spec_accept_rate`` divides depends on the version: both meanings are returned.
    """
    steps = trace.where(trace.rounds)
    length = lengths(steps.accepted, steps.request, trace.depth, level)
    rate = share(steps.accepted, steps.drafted, steps.request, level)
    formula = f"(accepted + steps) / {len(steps.step):,} steps"
    return (
        number("SGLang", "spec_accept_length", length, "tok", formula),
        number("SGLang", "spec_accept_rate", rate, "ratio", "accepted / drafted (newer versions)"),
        number(
            "SGLang",
            "spec_accept_rate with its own token",
            share(steps.accepted + 1, steps.drafted + 1, steps.request, level),
            "ratio",
            "(accepted + steps) / (drafted + steps) (older versions)",
        ),
    )


def to_eagle(trace: Trace, level: Scalar = 0.95) -> tuple[Number, ...]:
    """Return EAGLE's tau and n-alpha.

    tau: new tokens per round, after the text is cut. n-alpha: acceptance of a draft token
    that stands on n draft tokens, all accepted, so a conditional chance; 0-alpha is the first's.
    """
    steps = trace.where(trace.rounds)
    extra = lengths(steps.emitted - 1, steps.request, trace.depth, level)
    chances = by_position(trace, level).conditional
    return (
        number("EAGLE", "tau", extra, "tok", f"emitted / {len(steps.step):,} rounds"),
        *(
            number(
                "EAGLE",
                f"{n}-alpha",
                Interval(*(float(one[n]) for one in chances)),
                "ratio",
                f"accepted after {n} accepted / judged there",
            )
            for n in range(trace.depth)
        ),
        number("theory", "alpha", alpha(trace, level), "ratio", "accepted / judged draft tokens"),
    )


def to_aisbench(trace: Trace, level: Scalar = 0.95) -> tuple[Number, ...]:
    """Return AISBench's times, all requests issued when the log began (concurrency: all).

    TPOT is a mean over requests, each (E2EL - TTFT) / (tokens - 1); ITL is a mean over the gaps
    between chunks, and a chunk carries several tokens: it is not TPOT. Requests of one token
    have no TPOT.
    """
    size = len(trace.names)
    one = np.ones(size)
    first, last = trace.time[trace.step == 0], end_of_requests(trace)
    tokens, gaps = np.bincount(trace.request, trace.emitted, size), np.bincount(trace.request) - 1
    tpot = (last - first) / np.maximum(tokens - 1, 1)
    several = tokens > 1
    found = [
        number("AISBench", "TTFT", mean(first, one, level), "s", f"first tokens / {size} requests")
    ]
    if several.any():
        formula = f"(E2EL - TTFT) / (tokens - 1), mean of {int(several.sum())} requests"
        found.append(
            number("AISBench", "TPOT", mean(tpot[several], one[several], level), "s", formula)
        )
        formula = f"E2EL - TTFT / {int(gaps.sum()):,} gaps between chunks"
        itl = mean((last - first)[several], gaps[several], level)
        found.append(number("AISBench", "ITL", itl, "s", formula))
    total, end = float(tokens.sum()), float(trace.time.max())
    require("the log's duration", end, 1e-300)
    rate = Interval(total / end, np.nan, np.nan)
    formula = f"{total:,.0f} tokens / the run's {end:.3g} s"
    found.append(number("AISBench", "OutputTokenThroughput", rate, "tok/s", formula))
    return tuple(found)


def lengths(accepted: Value, request: Value, depth: int, level: Scalar) -> Interval:
    """Return 1 + accepted per step, with its interval."""
    most = max(depth, 1)
    found = share(accepted, np.full(len(accepted), most), request, level)
    return Interval(*(1.0 + most * one for one in found))


def mean(part: Value, whole: Value, level: Scalar) -> Interval:
    """Return sum(part) / sum(whole) over requests [R] with the interval of a ratio estimator.

    Cochran 1977, ch. 6, with Student's t; none from a single request.
    """
    middle, size = float(part.sum() / whole.sum()), len(part)
    if size < 2:
        return Interval(middle, np.nan, np.nan)
    spread = np.sqrt(size / (size - 1) * ((part - middle * whole) ** 2).sum()) / whole.sum()
    half = float(stats.t.ppf((1 + level) / 2, size - 1) * spread)
    return Interval(middle, max(middle - half, 0.0), middle + half)


def number(tool: str, name: str, found: Interval, unit: str, formula: str) -> Number:
    """Return an interval as a tool's metric."""
    value, low, high = (float(one) for one in found)
    return Number(tool, name, value, low, high, unit, formula)
