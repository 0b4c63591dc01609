"""How much faster a server is with speculation, from what was seen of it, with intervals."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from specjax.readers.observation import Latency, Observation
from specjax.theory.intervals import Interval, acceptance_ci, acceptance_ci_clustered

LEAST_PARTS = 5
ALIKE = 2.0  # the most that two batches may differ by for their times to be compared


class Gain(NamedTuple):
    """Acceptance and speedup with intervals; None where not known, and ``reasons`` says why."""

    rate: Interval | None
    length: Interval | None
    tokens_per_round: float | None  # rounds without a draft included
    round_s: float | None
    speedup: Interval | None
    reasons: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the fields for a JSON file; NaN becomes null."""
        found: dict[str, Any] = {
            "speedup": None if self.speedup is None else float(self.speedup.estimate),
            "tokens_per_round": self.tokens_per_round,
            "round_s": self.round_s,
        }
        named = ("speedup", self.speedup), ("acceptance_rate", self.rate)
        for name, one in (*named, ("mean_acceptance_length", self.length)):
            both = None if one is None else (float(one.low), float(one.high))
            found[f"{name}_interval"] = None if both is None or math.isnan(both[0]) else both
        return found


def find_gain(seen: Observation, baseline: Observation | None = None) -> Gain:
    """Return the acceptance, the tokens and seconds of a round, and the speedup.

    The speedup is the baseline's TPOT over this one's, so both must have served like load.
    Raises ValueError if the baseline speculates too.
    """
    rate = rate_interval(seen)
    drafted = None
    if seen.num_drafts and seen.num_draft_tokens:
        drafted = seen.num_draft_tokens / seen.num_drafts
    length = None
    if seen.mean_acceptance_length is not None:
        bounds = (math.nan, math.nan)
        if rate is not None and drafted is not None:
            bounds = (1.0 + rate.low * drafted, 1.0 + rate.high * drafted)
        length = Interval(float(seen.mean_acceptance_length), *bounds)
    tokens = tokens_per_round(seen)
    reasons = {}
    if seen.tpot is None:
        reasons["round_s"] = f"no TPOT: {seen.why('tpot')}"
    speedup, why = compare(seen, baseline)
    if why is not None:
        reasons["speedup"] = why
    return Gain(
        rate,
        length,
        tokens,
        seen.tpot.mean * tokens if seen.tpot is not None and tokens is not None else None,
        speedup,
        reasons,
    )


def tokens_per_round(seen: Observation) -> float | None:
    """Return the tokens of a request per pass of the target over it, its first token left out."""
    made, taken, requests = seen.generation_tokens, seen.num_accepted_tokens, seen.num_requests
    if None not in (made, taken, requests) and made - taken - requests > 0:  # pyright: ignore
        return float((made - requests) / (made - taken - requests))  # pyright: ignore
    length = seen.mean_acceptance_length
    return None if length is None else float(length)


def rate_interval(seen: Observation) -> Interval | None:
    """Return the acceptance rate with a 95% interval; NaN bounds where too little is known.

    From the shorter windows of a log or of several scrapes: a ratio estimator over them. From two
    scrapes: Wilson's for as many trials as requests, as if a request's drafts were all alike, which
    is the widest that clustering can make it.
    """
    if seen.acceptance_rate is None:
        return None
    rate, parts = float(seen.acceptance_rate), seen.parts
    if len(parts) >= LEAST_PARTS:
        drafted, accepted = (
            np.array([getattr(one, name) for one in parts], np.float64)
            for name in ("num_draft_tokens", "num_accepted_tokens")
        )
        wide = acceptance_ci_clustered(drafted, accepted, np.arange(len(parts)))
        narrow = acceptance_ci(accepted.sum(), drafted.sum())
        low, high = min(wide.low, narrow.low), max(wide.high, narrow.high)
        return Interval(rate, float(low), float(high))
    if seen.num_requests:
        found = acceptance_ci(rate * seen.num_requests, seen.num_requests)
        return Interval(rate, float(found.low), float(found.high))
    return Interval(rate, math.nan, math.nan)


def compare(seen: Observation, baseline: Observation | None) -> tuple[Interval | None, str | None]:
    """Return the speedup over a baseline, or why it is not known."""
    if baseline is None:
        return None, "no --baseline (the same load without speculation)"
    if baseline.num_drafts or baseline.num_draft_tokens:
        raise ValueError(
            f"the baseline {baseline.source} speculates too: pass a server without speculation."
        )
    if seen.tpot is None or baseline.tpot is None:
        without = seen if seen.tpot is None else baseline
        return None, f"no TPOT of {without.source}: {without.why('tpot')}"
    if seen.running and baseline.running:
        ratio = max(seen.running / baseline.running, baseline.running / seen.running)
        if ratio > ALIKE:
            return None, (
                f"{seen.running:.3g} requests ran side by side, {baseline.running:.3g} in the "
                "baseline: measure both under one load"
            )
    middle = baseline.tpot.mean / seen.tpot.mean
    spread = math.hypot(relative_error(seen.tpot), relative_error(baseline.tpot))
    return Interval(middle, middle * math.exp(-spread), middle * math.exp(spread)), None


def relative_error(found: Latency) -> float:
    """Return the half width of a mean's 95% interval over the mean; NaN where not known."""
    if found.std is None or not found.count or found.count < 2:
        return math.nan
    error = found.std / math.sqrt(found.count) / found.mean
    return float(stats.t.ppf(0.975, found.count - 1) * error)
