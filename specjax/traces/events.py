"""The canonical event log of speculative decoding: one line per step of a request.

``{"request": "7", "step": 3, "drafted": 4, "accepted": 2, "emitted": 3, "time": 0.518}``:
step 0 is the prefill, which emits the first token undrafted; ``accepted`` is counted before the
text is cut at its end, ``emitted`` after; ``time`` is when the step ended, in seconds since the
log began. All metrics of a run derive from these six.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from specjax.host.files import write_atomically

COUNTS = ("step", "drafted", "accepted", "emitted")
EXAMPLE = '{"request": "0", "step": 1, "drafted": 4, "accepted": 2, "emitted": 3, "time": 0.05}'


class Event(NamedTuple):
    """One step of one request."""

    request: str
    step: int
    drafted: int
    accepted: int
    emitted: int
    time: float  # s


class Trace(NamedTuple):
    """A log as arrays, request by request, each in the order of its steps."""

    names: tuple[str, ...]
    request: Int[np.ndarray, "E"]  # index into names
    step: Int[np.ndarray, "E"]
    drafted: Int[np.ndarray, "E"]
    accepted: Int[np.ndarray, "E"]
    emitted: Int[np.ndarray, "E"]
    time: Float[np.ndarray, "E"]  # s

    @property
    def rounds(self) -> Bool[np.ndarray, "E"]:
        """Whether each event is a round of speculation (False: a prefill)."""
        return self.step > 0

    @property
    def depth(self) -> int:
        """K, the length of the longest draft."""
        return int(self.drafted.max(initial=0))

    def where(self, kept: Bool[np.ndarray, "E"]) -> "Trace":
        """Return the log with only the events marked in ``kept``."""
        return Trace(self.names, *(leaf[kept] for leaf in self[1:]))


def to_trace(events: Iterable[Event]) -> Trace:
    """Return events as arrays, requests in the order of their first event.

    Raises ValueError, naming the event, if they are no log (see ``check``).
    """
    by_request: dict[str, list[Event]] = {}
    for event in events:
        steps = by_request.setdefault(event.request, [])
        check(event, steps[-1] if steps else None)
        steps.append(event)
    if not by_request:
        raise ValueError("the log has no events: nothing to read from it.")
    rows = [event for steps in by_request.values() for event in steps]
    index = {name: i for i, name in enumerate(by_request)}
    return Trace(
        names=tuple(by_request),
        request=np.array([index[event.request] for event in rows], np.int64),
        step=np.array([event.step for event in rows], np.int64),
        drafted=np.array([event.drafted for event in rows], np.int64),
        accepted=np.array([event.accepted for event in rows], np.int64),
        emitted=np.array([event.emitted for event in rows], np.int64),
        time=np.array([event.time for event in rows], np.float64),
    )


def check(event: Event, before: Event | None) -> None:
    """Raise ValueError unless an event can follow the one before it in its request."""
    who = f"request {event.request!r} step {event.step}"
    if not 0 <= event.accepted <= event.drafted:
        raise ValueError(
            f"{who}: need 0 <= accepted <= drafted, got accepted {event.accepted} of "
            f"{event.drafted} drafted: count draft tokens only, not the target's own."
        )
    if not 1 <= event.emitted <= event.accepted + 1:
        raise ValueError(
            f"{who}: need 1 <= emitted <= accepted + 1, got emitted {event.emitted} and accepted "
            f"{event.accepted}: emitted counts the target's own token too."
        )
    if not (math.isfinite(event.time) and event.time >= 0):
        raise ValueError(f"{who}: time must be seconds since the log began, got {event.time}.")
    if before is None:
        if event.step != 0 or event.drafted:
            raise ValueError(
                f"{who}: a request begins with step 0, its prefill, which drafts nothing; got "
                f"step {event.step} with {event.drafted} drafted."
            )
        return
    if event.step != before.step + 1:
        raise ValueError(f"{who}: expected step {before.step + 1}; is a line missing?")
    if event.time < before.time:
        raise ValueError(
            f"{who}: time {event.time} lies before the {before.time} of the step before it."
        )
    if before.emitted <= before.accepted:
        raise ValueError(
            f"{who}: step {before.step} emitted {before.emitted} of {before.accepted + 1} tokens, "
            "as only the last step of a request may."
        )


def read_trace(path: Path) -> Trace:
    """Read a log from JSON lines; further keys are ignored.

    Raises ValueError with the line's number for what is no event, OSError for no file.
    """
    events, last = [], {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            event = parse(line)
            check(event, last.get(event.request))
        except ValueError as error:
            raise ValueError(f"{path} line {number}: {error}") from None
        last[event.request] = event
        events.append(event)
    if not events:
        raise ValueError(f"{path} has no events; a line of a log reads {EXAMPLE}")
    return to_trace(events)


def parse(line: str) -> Event:
    """Read one line. Raises ValueError saying what is wrong with which value."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON ({error}); a line reads {EXAMPLE}") from None
    missing = [n for n in Event._fields if not isinstance(found, dict) or n not in found]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}; a line reads {EXAMPLE}")
    for name in COUNTS:
        if type(found[name]) is not int:
            raise ValueError(f"{name} must be a whole number, got {found[name]!r}.")
    if type(found["time"]) not in (int, float):
        raise ValueError(f"time must be a number of seconds, got {found['time']!r}.")
    return Event(
        str(found["request"]), *(found[name] for name in COUNTS), time=float(found["time"])
    )


def write_trace(path: Path, events: Sequence[Event]) -> None:
    """Write a log whole or not at all, in the order of time. Raises as ``to_trace`` does."""
    to_trace(events)
    with write_atomically(path) as file:
        for event in sorted(events, key=lambda event: event.time):
            file.write((json.dumps(event._asdict()) + "\n").encode())


def end_of_requests(trace: Trace) -> Float[np.ndarray, "R"]:
    """Return when each request ended [s]."""
    last = np.zeros(len(trace.names))
    np.maximum.at(last, trace.request, trace.time)
    return last


def concurrency(trace: Trace) -> float:
    """Return how many requests decoded side by side, averaged over the time that any did.

    1 for a log in which no time passed.
    """
    first, last = trace.time[trace.step == 0], end_of_requests(trace)
    span = last.max() - first.min()
    return float((last - first).sum() / span) if span > 0 else 1.0


def to_events(trace: Trace) -> list[Event]:
    """Return a trace as events, request by request."""
    columns = (leaf.tolist() for leaf in trace[2:])
    names = (trace.names[i] for i in trace.request.tolist())
    return [Event(*row) for row in zip(names, *columns, strict=True)]
