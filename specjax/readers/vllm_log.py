"""The lines that vLLM logs every ten seconds; vllm-ascend's and our server's are the same.

``Avg prompt throughput: ...`` since version 0; acceptance as ``Speculative metrics: ...`` in
version 0, ``SpecDecoding metrics: Draft acceptance rate: ...`` in 0.8 and
``SpecDecoding metrics: Mean acceptance length: ...`` since.
"""

import re
from datetime import datetime
from typing import NamedTuple

MARKS = ("Avg prompt throughput", "SpecDecoding metrics", "Speculative metrics")
STAMP = re.compile(r"(?:(\d{4})-)?(\d\d-\d\d \d\d:\d\d:\d\d)")
THROUGHPUT = re.compile(
    r"(?:Engine (?P<engine>\d+): )?Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, "
    r"Avg generation throughput: (?P<generation>[\d.]+) tokens/s, "
    r"Running: (?P<running>\d+) reqs, (?:Swapped: \d+ reqs, )?"
    r"(?:Waiting|Pending): (?P<waiting>\d+) reqs"
)
CACHE = re.compile(r"(?P<device>\w+ )?KV cache usage: (?P<usage>[\d.]+)%")
PREEMPTIONS = re.compile(r"Preemptions: (\d+)")
LENGTH = re.compile(r"Mean acceptance length: ([\d.]+)")
ACCEPTED = re.compile(r"\bAccepted: (\d+) tokens")
DRAFTED = re.compile(r"\bDrafted: (\d+) tokens")
RATES = re.compile(r"Per-position acceptance rate: ((?:[\d.]+, )*[\d.]+)")
VERSION_0 = re.compile(
    r"Number of speculative tokens: (?P<k>\d+), Number of accepted tokens: \d+, "
    r"Number of draft tokens: (?P<drafted>\d+), Number of emitted tokens: (?P<emitted>\d+)"
)


class Load(NamedTuple):
    """A line with throughput and queue."""

    engine: str
    time: datetime | None
    prompt: float  # tok/s
    generation: float  # tok/s
    running: int
    waiting: int
    cache: float | None  # 0 to 1
    device: str
    preemptions: int | None  # since the start


class Speculation(NamedTuple):
    """A line with acceptance, since the line before it; in version 0 since the start."""

    time: datetime | None
    drafts: float | None
    drafted: int
    accepted: float
    rates: tuple[float, ...] | None
    since_start: bool


def parse_vllm(line: str, year: int) -> Load | Speculation | None:
    """Return what a line says; None for another line."""
    stamp = STAMP.search(line)
    time = None
    if stamp is not None:
        time = datetime.strptime(f"{stamp[1] or year}-{stamp[2]}", "%Y-%m-%d %H:%M:%S")
    if (found := THROUGHPUT.search(line)) is not None:
        cache, preemptions = CACHE.search(line), PREEMPTIONS.search(line)
        return Load(
            found["engine"] or "000",
            time,
            float(found["prompt"]),
            float(found["generation"]),
            int(found["running"]),
            int(found["waiting"]),
            None if cache is None else float(cache["usage"]) / 100,
            "" if cache is None else (cache["device"] or "").strip(),
            None if preemptions is None else int(preemptions[1]),
        )
    if (found := VERSION_0.search(line)) is not None:
        drafted = int(found["drafted"])
        drafts = drafted / int(found["k"])
        return Speculation(time, drafts, drafted, int(found["emitted"]) - drafts, None, True)
    accepted, drafted = ACCEPTED.search(line), DRAFTED.search(line)
    if "SpecDecoding metrics" not in line or accepted is None or drafted is None:
        return None
    rates = RATES.search(line)
    shares = None if rates is None else tuple(map(float, rates[1].split(", ")))
    taken, offered = int(accepted[1]), int(drafted[1])
    drafts = num_drafts(taken, offered, shares, LENGTH.search(line))
    return Speculation(time, drafts, offered, taken, shares, False)


def num_drafts(
    accepted: int, drafted: int, rates: tuple[float, ...] | None, length: re.Match[str] | None
) -> float | None:
    """Return the number of drafts, which the line leaves out but for rounding.

    Drafted / K where that agrees with the rates, else accepted over their sum.
    """
    if rates is None:
        return None if length is None or not accepted else accepted / (float(length[1]) - 1.0)
    by_rates = accepted / sum(rates) if sum(rates) > 0 else 0.0
    full = drafted / len(rates)
    rounding = 0.0005 * len(rates) / max(sum(rates), 1e-9)
    return full if not accepted or abs(full / by_rates - 1.0) <= rounding + 1e-6 else by_rates
