"""Reads a server's own log: vLLM's (vllm-ascend's, ours) or SGLang's lines with statistics."""

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from specjax.readers import sglang_log, vllm_log
from specjax.readers.observation import Latency, Observation, Part
from specjax.readers.sglang_log import Decoding, parse_sglang
from specjax.readers.vllm_log import Load, Speculation, parse_vllm

LATENCIES: tuple[str, ...] = ("ttft", "itl", "e2e", "queue")
OTHERS = "lines without statistics"
PER_REQUEST = "running requests / generation throughput, of all lines (Little's law)"
ASCEND = ("vllm_ascend", "vllm-ascend", "acl_graph", "aclgraph")


def read_log(lines: Iterable[str], source: str) -> Observation:
    """Return what the lines of a log say, over all of them.

    Lines that look like statistics and cannot be read are counted in ``unread``, by their words.

    Raises:
        ValueError: no line with statistics, or lines of two engines.
    """
    year = datetime.now().year
    found: dict[str, list[Any]] = {"vLLM": [], "SGLang": []}
    unread: Counter[str] = Counter()
    ascend, first = False, None
    for line in lines:
        ascend = ascend or any(word in line for word in ASCEND)
        first = first or line.strip()
        if any(mark in line for mark in vllm_log.MARKS):
            kind, one = "vLLM", parse_vllm(line, year)
        elif any(mark in line for mark in sglang_log.MARKS):
            kind, one = "SGLang", parse_sglang(line)
        else:
            unread[OTHERS] += 1
            continue
        if one is None:
            unread[shape(line)] += 1
        else:
            found[kind].append(one)
    engines = [kind for kind, some in found.items() if some]
    if len(engines) > 1:
        raise ValueError(f"{source} has lines of vLLM and of SGLang: pass one server's log.")
    if not engines:
        raise ValueError(
            f"{source} has no line with statistics of vLLM (Avg prompt throughput: ...) or SGLang "
            f"(Decode batch ...); it begins with {(first or '')[:60]!r}. Servers log them every "
            "few seconds while they work; vLLM not under --disable-log-stats."
        )
    if engines == ["SGLang"]:
        return of_sglang(found["SGLang"], source, unread)
    devices = {one.device for one in found["vLLM"] if isinstance(one, Load)}
    engine = "vllm-ascend" if ascend or "NPU" in devices else "vLLM"
    return of_vllm(found["vLLM"], source, engine, unread)


def shape(line: str) -> str:
    """Return a line's words, numbers replaced, to name lines of one kind."""
    return re.sub(r"\d+", "#", line.strip())[:80]


def of_vllm(
    found: Sequence[Load | Speculation], source: str, engine: str, unread: Counter[str]
) -> Observation:
    """Return what vLLM's lines say."""
    loads = [one for one in found if isinstance(one, Load)]
    drafts = [one for one in found if isinstance(one, Speculation)]
    engines = max(len({one.engine for one in loads}), 1)
    busy = [one for one in loads if one.running or one.generation]
    gap, seconds = spans([one.time for one in loads if one.engine == loads[0].engine])
    preempted = [one.preemptions for one in loads if one.preemptions is not None]
    caches = [one.cache for one in busy if one.cache is not None]
    reasons = {"preemptions": "no line names preemptions", "tpot": "no line has requests running"}
    reasons |= dict.fromkeys(LATENCIES, "a log does not hold latencies")
    return Observation(
        engine=engine,
        source=source,
        **times([one.time for one in found]),
        seconds=seconds,
        **speculated(drafts, reasons),
        running=mean([one.running for one in busy], engines),
        waiting=mean([one.waiting for one in busy], engines),
        prompt_tokens=None if gap is None else sum(one.prompt for one in loads) * gap,
        generation_tokens=None if gap is None else sum(one.generation for one in loads) * gap,
        generation_throughput=mean([one.generation for one in busy], engines),
        preemptions=max(preempted, default=None),
        kv_cache_usage=mean(caches),
        tpot=per_request(busy),
        reasons=reasons,
        derived={"tpot": PER_REQUEST},
        unread=unread,
    )


def speculated(drafts: Sequence[Speculation], reasons: dict[str, str]) -> dict[str, Any]:
    """Return the fields of acceptance from vLLM's lines; adds why fields are missing."""
    if not drafts:
        reasons |= dict.fromkeys(
            ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_rate",
             "mean_acceptance_length", "acceptance_per_position"),
            "no line with SpecDecoding metrics: nothing was drafted",
        )  # fmt: skip
        return {}
    if drafts[-1].since_start:
        drafts = drafts[-1:]
    drafted, accepted = (sum(getattr(one, n) for one in drafts) for n in ("drafted", "accepted"))
    counts = [one.drafts for one in drafts]
    number = None if any(one is None for one in counts) else sum(one or 0.0 for one in counts)
    if number is None:
        why = "this version's lines have the rate of acceptance only"
        reasons |= dict.fromkeys(("num_drafts", "mean_acceptance_length"), why)
    places = {len(one.rates or ()) for one in drafts}
    rates = None
    if number and len(places) == 1 and 0 not in places:
        weighted = [[rate * (one.drafts or 0.0) for rate in one.rates or ()] for one in drafts]
        rates = tuple(sum(column) / number for column in zip(*weighted, strict=True))
    else:
        reasons["acceptance_per_position"] = "the lines do not have it, or change K"
    return {
        "num_drafts": number,
        "num_draft_tokens": drafted,
        "num_accepted_tokens": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1.0 + accepted / number if number else None,
        "acceptance_per_position": rates,
        "parts": tuple(Part(o.drafts or 0.0, o.drafted, o.accepted) for o in drafts if o.drafted),
    }


def of_sglang(found: Sequence[Decoding], source: str, unread: Counter[str]) -> Observation:
    """Return what SGLang's lines say; those of further ranks count as unread."""
    own = [one for one in found if one.rank == found[0].rank]
    if len(own) < len(found):
        unread["Decode batch of further ranks"] = len(found) - len(own)
    busy = [one for one in own if one.running or one.generation]
    spec = [(one.length, one.running) for one in busy if one.length]
    length = sum(n * weight for n, weight in spec) / sum(w for _, w in spec) if spec else None
    _, seconds = spans([one.time for one in own])
    nothing = "SGLang logs the length of acceptance, and no counts"
    return Observation(
        engine="SGLang",
        source=source,
        **times([one.time for one in own]),
        seconds=seconds,
        mean_acceptance_length=length,
        running=mean([one.running for one in busy]),
        waiting=mean([one.waiting for one in busy if one.waiting is not None]),
        generation_throughput=mean([one.generation for one in busy]),
        kv_cache_usage=mean([one.cache for one in busy if one.cache is not None]),
        tpot=per_request(busy),
        reasons={
            **dict.fromkeys(
                ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_rate",
                 "acceptance_per_position"),
                nothing,
            ),
            "mean_acceptance_length": "no line has accept len: nothing was drafted",
            **dict.fromkeys(LATENCIES, "a log does not hold latencies"),
        },
        derived={"tpot": PER_REQUEST},
        unread=unread,
    )  # fmt: skip


def per_request(busy: Sequence[Load | Decoding]) -> Latency | None:
    """Return the time per token of one request, from requests and throughput.

    Little's law over the whole time: a line's requests are those of one moment and its tokens those
    since the line before, so no line by itself has both of one time, and none is left out.
    """
    running, tokens = (sum(getattr(one, n) for one in busy) for n in ("running", "generation"))
    return Latency(running / tokens) if running and tokens else None


def mean(values: Sequence[Any], factor: int = 1) -> float | None:
    """Return ``factor`` times the mean; None of nothing."""
    return factor * sum(values) / len(values) if values else None


def times(stamps: Sequence[datetime | None]) -> dict[str, Any]:
    """Return the first and the last time stamp as fields, if there are any."""
    known = [one for one in stamps if one is not None]
    return {"start": known[0], "end": known[-1]} if known else {}


def spans(stamps: Sequence[datetime | None]) -> tuple[float | None, float | None]:
    """Return the usual seconds between lines, and those that all lines cover.

    Each line is about the time since the one before it, and the first about as long a time.
    """
    known = [one for one in stamps if one is not None]
    gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(known)]
    if not gaps:
        return None, None
    usual = statistics.median(gaps)
    return usual, (known[-1] - known[0]).total_seconds() + usual
