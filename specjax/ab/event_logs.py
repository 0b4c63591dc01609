"""The rounds of a comparison as canonical event logs, one of each arm, dataset and load."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from specjax.ab.bases import is_plain
from specjax.ab.compare import by_load
from specjax.ab.records import Log, Record, Unit
from specjax.traces.events import Event, write_trace

Round = tuple[int, int, int]  # drafted, accepted, emitted


def write_event_logs(log: Log, folder: Path) -> Iterator[Path]:
    """Write and yield the event log of every arm, dataset and load whose rounds are known."""
    plain = {arm["label"]: is_plain(arm) for arm in log.manifest["arms"]}
    for (dataset, concurrency), arms in by_load(log.units).items():
        for label, units in arms.items():
            events = to_events(units, plain=plain[label])
            if events:
                load = f"load-{concurrency}" if concurrency else "open-loop"
                path = folder / f"events-{label}-{dataset}-{load}.jsonl"
                write_trace(path, events)
                yield path


def to_events(units: Sequence[Unit], *, plain: bool = False) -> list[Event]:
    """Return the rounds of one arm's requests as events; [] if any round is unknown.

    Args:
        units: of one arm, on one dataset at one load.
        plain: whether the arm is known not to speculate, so that every token is a round.
    """
    events, start = [], 0.0
    for unit in units:
        for one in unit.requests:
            if one.error is None:
                name = f"{unit.dataset}/{unit.concurrency}/{unit.block}/{one.prompt}"
                rounds = rounds_of(one, plain=plain)
                if rounds is None:
                    return []
                last_tokens = [emitted for _, _, emitted in rounds]
                chunk = np.searchsorted(np.cumsum(one.counts), list(accumulate(last_tokens)))
                events += [
                    Event(name, step, *counts, time=start + one.sent + one.times[i])
                    for step, (counts, i) in enumerate(zip(rounds, chunk, strict=True))
                ]
        start += unit.seconds
    return events


def rounds_of(record: Record, *, plain: bool) -> list[Round] | None:
    """Return every round of a request, the prefill first; None if they are unknown.

    A chunk may hold several rounds, if its reader was late; a round ends with the chunk that has
    its last token. Servers do not report rounds without a draft, so that a request with some is
    unknown.
    """
    if not record.counts:
        return None
    if record.drafted is None or record.accepted is None:
        known = plain or set(record.counts) == {1}
        return [(0, 0, 1)] * record.output_tokens if known else None
    emitted = [accepted + 1 for accepted in record.accepted]
    if len(emitted) < len(record.counts) - 1 or not emitted:
        return [(0, 0, 1)] if record.output_tokens == 1 else None
    emitted[-1] -= 1 + sum(emitted) - record.output_tokens  # the text ends within the last round
    if not 1 <= emitted[-1] <= record.accepted[-1] + 1:
        return None
    return [(0, 0, 1), *zip(record.drafted, record.accepted, emitted, strict=True)]
