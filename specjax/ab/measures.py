"""Metrics of one arm's requests: latencies, throughput, acceptance and repetitiveness.

TTFT: from sending a request to its first token. E2EL: to its last token. TPOT: (E2EL - TTFT)
per token after the first chunk's (vLLM's and AISBench's definition, where the first chunk has
one token). ITL: the gap between two chunks, or that gap per token of the later chunk. TPS:
output tokens per second of the whole run, and of the window in which all slots were taken.
Failed requests are counted, never averaged.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specjax.ab.records import Record, Unit
from specjax.core.metrics import LEAST_DISTINCT, SpecDecodeCounters
from specjax.measure.objectives import meets


class Spread(NamedTuple):
    """Mean, median and 99th percentile."""

    mean: float
    p50: float
    p99: float


class Measures(NamedTuple):
    """Metrics of one arm at one load on one dataset. Times in seconds; None: unknown."""

    arm: str
    dataset: str
    concurrency: int
    num_requests: int
    failures: Mapping[str, int]  # kind -> number
    mean_input: float
    mean_output: float
    ttft: Spread
    tpot: Spread | None  # over requests
    tpot_by_token: float | None  # over tokens
    itl_by_chunk: Spread | None
    itl_by_token: float | None
    e2el: Spread
    tps: float
    tps_steady: float | None
    occupancy: float  # requests under way, averaged over the run
    goodput: float | None  # requests per second that met the objectives
    counters: SpecDecodeCounters | None
    eos: float  # share of requests that ended by themselves
    loops: float | None  # share of texts with few distinct bigrams
    retokenized: float | None  # tokens of the texts, by a tokenizer of ours, per token counted
    accuracy: float | None


def measure(units: Sequence[Unit], slo: Mapping[str, float] | None = None) -> Measures:
    """Return one arm's metrics at one load, over all its blocks.

    Raises ValueError if every request failed.
    """
    good = [one for unit in units for one in unit.requests if one.error is None]
    bad = Counter(one.error for unit in units for one in unit.requests if one.error is not None)
    first = units[0]
    if not good:
        raise ValueError(
            f"arm {first.arm}: every request on {first.dataset} failed: {bad.most_common(3)}"
        )
    seconds = sum(unit.seconds for unit in units)
    tpots = [value for one in good if (value := tpot(one)) is not None]
    gaps = [gap for one in good for gap in np.diff(one.times)]
    chunked = [one for one in good if one.counts and len(one.times) > 1]
    after = sum(one.output_tokens - first_count(one) for one in good)
    bigrams = [one.distinct_bigrams for one in good if one.distinct_bigrams is not None]
    again = [one for one in good if one.retokenized is not None]
    graded = [one.correct for one in good if one.correct is not None]
    tokens = sum(one.output_tokens for one in good)
    return Measures(
        arm=first.arm,
        dataset=first.dataset,
        concurrency=first.concurrency,
        num_requests=len(good),
        failures=dict(bad),
        mean_input=float(np.mean([one.input_tokens for one in good])),
        mean_output=tokens / len(good),
        ttft=spread([one.times[0] for one in good]),
        tpot=spread(tpots) if tpots else None,
        tpot_by_token=sum(one.times[-1] - one.times[0] for one in good) / after if after else None,
        itl_by_chunk=spread(gaps) if gaps else None,
        itl_by_token=sum(one.times[-1] - one.times[0] for one in chunked)
        / sum(sum(one.counts[1:]) for one in chunked)
        if chunked
        else None,
        e2el=spread([one.times[-1] for one in good]),
        tps=tokens / seconds,
        tps_steady=steady(units),
        occupancy=sum(one.times[-1] for one in good) / seconds,
        goodput=None if not slo else sum(meets(times_of(one), slo) for one in good) / seconds,
        counters=merged(unit.counters for unit in units),
        eos=float(np.mean([one.finish_reason == "stop" for one in good])),
        loops=float(np.mean(np.array(bigrams) < LEAST_DISTINCT)) if bigrams else None,
        retokenized=sum(one.retokenized or 0 for one in again)
        / sum(one.output_tokens for one in again)
        if again
        else None,
        accuracy=float(np.mean(graded)) if graded else None,
    )


def first_count(record: Record) -> int:
    """Return the number of tokens in the first chunk; 1 if the server does not return ids."""
    return record.counts[0] if record.counts else 1


def tpot(record: Record) -> float | None:
    """Return seconds per token after the first chunk; None if there is no later token."""
    after = record.output_tokens - first_count(record)
    return (record.times[-1] - record.times[0]) / after if after > 0 else None


def times_of(record: Record) -> dict[str, float]:
    """Return a request's times by objective; without a later token its TPOT is 0."""
    return {"ttft": record.times[0], "tpot": tpot(record) or 0.0, "e2el": record.times[-1]}


def spread(values: Sequence[float]) -> Spread:
    """Return mean, median and 99th percentile."""
    return Spread(float(np.mean(values)), *np.percentile(values, (50, 99)).tolist())


def steady(units: Iterable[Unit]) -> float | None:
    """Return tokens per second while all ``concurrency`` requests run, between ramp and drain.

    That is from when the last slot got its first request to when the last request was sent.
    None in an open loop, or where no block was long enough.
    """
    tokens, seconds = 0.0, 0.0
    for unit in units:
        sent = sorted(one.sent for one in unit.requests)
        if not unit.concurrency or len(sent) <= unit.concurrency:
            continue
        start, end = sent[unit.concurrency - 1], sent[-1]
        seconds += end - start
        for one in unit.requests:
            if one.error is None:
                counts = one.counts or [one.output_tokens / len(one.times)] * len(one.times)
                when = zip(one.times, counts, strict=True)
                tokens += sum(count for time, count in when if start <= one.sent + time < end)
    return tokens / seconds if seconds else None


def merged(counted: Iterable[Mapping | None]) -> SpecDecodeCounters | None:
    """Return the sum of counters; None if any is unknown."""
    total = SpecDecodeCounters.zeros(0)
    for one in counted:
        if one is None:
            return None
        per_pos = tuple(one["num_accepted_tokens_per_pos"])
        total = total.merge(
            SpecDecodeCounters(
                one["num_drafts"], one["num_draft_tokens"], one["num_accepted_tokens"], per_pos
            )
        )
    return total
