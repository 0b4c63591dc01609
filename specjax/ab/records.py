"""The log of a comparison: one line per request, counter reading or run; all else derives from it.

A line is an object with one key: ``manifest`` (first line), ``unit`` (all requests of one arm in
one block, with the server's counters before and after, written at once when the unit is over)
or ``triage`` (a first difference of greedy texts, explained). An interrupted run goes on after
its last whole unit.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specjax.files import write_atomically


class Record(NamedTuple):
    """One request as its client saw it. Times in seconds after it was sent."""

    prompt: str  # id
    sent: float  # s since the unit began
    times: tuple[float, ...]  # of the chunks that brought tokens
    counts: tuple[int, ...]  # tokens in each of them; () if the server does not tell
    end: float  # when the stream was over
    input_tokens: int
    output_tokens: int
    finish_reason: str | None
    tokens: tuple[int, ...] | None  # ids, if the server tells them
    text_sha256: str
    distinct_bigrams: float | None  # share, of ids if told, else of words; None: no bigram
    retokenized: int | None  # tokens of the text by a tokenizer of ours
    correct: bool | None  # against the dataset's answer
    accepted: tuple[int, ...] | None  # per round, if the server tells
    drafted: tuple[int, ...] | None
    error: str | None  # kind of failure; the rest is then not to be averaged


class Unit(NamedTuple):
    """One arm's turn: a block of prompts at one load."""

    arm: str
    dataset: str
    concurrency: int  # requests at a time; 0: open loop
    block: int
    seconds: float  # from the first request to the last one's end
    requests: tuple[Record, ...]
    counters: Mapping[str, Any] | None  # speculative counters by difference, if the server tells


class Triage(NamedTuple):
    """Why two greedy texts part."""

    arm: str
    dataset: str
    prompt: str
    at: int  # tokens in common
    verdict: str
    passed: bool


class Log(NamedTuple):
    """Everything that was recorded."""

    manifest: Mapping[str, Any]
    units: tuple[Unit, ...]
    triage: tuple[Triage, ...]


def failed(prompt: str, sent: float, end: float, error: str) -> Record:
    """Record a request that brought nothing to average."""
    nothing = (), (), end, 0, 0, None, None, "", None, None, None, None, None
    return Record(prompt, sent, *nothing, error=error)


def sha256(text: str) -> str:
    """Return a text's hash: texts are compared, and not kept."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def start_log(path: Path, manifest: Mapping[str, Any]) -> None:
    """Begin a log with the run's manifest."""
    with write_atomically(path) as file:
        file.write(line("manifest", dict(manifest)))


def append(path: Path, what: Unit | Triage) -> None:
    """Add a unit or a triage to a log, in one write."""
    value: dict[str, Any] = what._asdict()
    if isinstance(what, Unit):
        value["requests"] = [rounded(record._asdict()) for record in what.requests]
    with open(path, "ab") as file:
        file.write(line(type(what).__name__.lower(), rounded(value)))


def line(kind: str, value: Mapping[str, Any]) -> bytes:
    """Write one line."""
    return (json.dumps({kind: value}, separators=(",", ":")) + "\n").encode()


def rounded(value: dict[str, Any]) -> dict[str, Any]:
    """Keep times to the microsecond."""

    def short(one):
        if isinstance(one, float):
            return round(one, 6)
        return tuple(map(short, one)) if isinstance(one, tuple) else one

    return {name: short(one) for name, one in value.items()}


def read_log(path: Path) -> Log:
    """Read a log. A last line that was cut off is left out.

    Raises ValueError, naming the line, for what is no such log, OSError for no file.
    """
    manifest, units, triage = None, [], []
    for number, (kind, value) in lines(path):
        try:
            if kind == "manifest":
                manifest = value
            elif kind == "unit":
                requests = tuple(read_record(one) for one in value.pop("requests"))
                units.append(Unit(**value, requests=requests))
            elif kind == "triage":
                triage.append(Triage(**value))
            else:
                raise ValueError(f"a line is a manifest, a unit or a triage, not {kind!r}")
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(f"{path} line {number} is not of a specjax ab log: {error}") from None
    if manifest is None:
        raise ValueError(f"{path} is no log of specjax ab: its first line must be the manifest.")
    return Log(manifest, tuple(units), tuple(triage))


def lines(path: Path) -> Iterator[tuple[int, tuple[str, Any]]]:
    """Yield (number, (kind, value)) of every whole line."""
    text = path.read_text(encoding="utf-8")
    for number, one in enumerate(text.splitlines(keepends=True), start=1):
        try:
            ((kind, value),) = json.loads(one).items()
        except (ValueError, AttributeError):
            if not one.endswith("\n"):
                return  # cut off while it was written
            raise ValueError(f"{path} line {number} is not a line of a specjax ab log") from None
        yield number, (kind, value)


def mend(path: Path) -> None:
    """Cut off a last line that was not written to its end, so that others can follow."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        with write_atomically(path) as file:
            file.write(whole)


def read_record(value: Mapping[str, Any]) -> Record:
    """Read one request. Raises TypeError for unknown or missing names."""
    as_tuple = ("times", "counts", "tokens", "accepted", "drafted")
    given = dict(value)
    for name in as_tuple:
        if isinstance(given.get(name), Sequence):
            given[name] = tuple(given[name])
    return Record(**given)
