"""The log of a comparison, as JSON lines; tables and reports derive from it alone.

A line is an object with one key: ``manifest`` (first line), ``unit`` (all requests of one arm in
one block, with the server's counters before and after, written at once when the unit is over)
or ``triage`` (the explanation of a first difference between greedy texts). An interrupted run
continues after its last complete unit.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specjax.host.files import write_atomically


class Record(NamedTuple):
    """One request as measured by the client. Times in seconds after it was sent."""

    prompt: str  # id
    sent: float  # s since the unit began
    times: tuple[float, ...]  # of the chunks with tokens
    counts: tuple[int, ...]  # tokens in each of them; () if unknown
    end: float  # end of the stream
    input_tokens: int
    output_tokens: int
    finish_reason: str | None
    tokens: tuple[int, ...] | None  # ids, if the server returns them
    text_sha256: str
    distinct_bigrams: float | None  # share, of ids if known, else of words; None: no bigram
    retokenized: int | None  # tokens of the text by our tokenizer
    correct: bool | None  # against the dataset's answer
    accepted: tuple[int, ...] | None  # per round, if known
    drafted: tuple[int, ...] | None
    error: str | None  # kind of failure; the other fields are then meaningless


class Unit(NamedTuple):
    """One arm's requests on a block of prompts at one load."""

    arm: str
    dataset: str
    concurrency: int  # requests at a time; 0: open loop
    block: int
    seconds: float  # from the first request to the last one's end
    requests: tuple[Record, ...]
    counters: Mapping[str, Any] | None  # speculative counters by difference, if known


class Divergence(NamedTuple):
    """The explanation of the first difference between two greedy texts."""

    arm: str
    dataset: str
    prompt: str
    at: int  # tokens in common
    verdict: str
    passed: bool


class Log(NamedTuple):
    """The contents of a log."""

    manifest: Mapping[str, Any]
    units: tuple[Unit, ...]
    divergences: tuple[Divergence, ...]


def failed(prompt: str, sent: float, end: float, error: str) -> Record:
    """Return the record of a failed request."""
    nothing = (), (), end, 0, 0, None, None, "", None, None, None, None, None
    return Record(prompt, sent, *nothing, error=error)


def sha256(text: str) -> str:
    """Return a text's hash, which is compared instead of the text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def start_log(path: Path, manifest: Mapping[str, Any]) -> None:
    """Write a new log with the run's manifest."""
    with write_atomically(path) as file:
        file.write(line("manifest", dict(manifest)))


def append(path: Path, what: Unit | Divergence) -> None:
    """Append a unit or a divergence to a log, in one write."""
    value: dict[str, Any] = what._asdict()
    if isinstance(what, Unit):
        value["requests"] = [rounded(record._asdict()) for record in what.requests]
    with open(path, "ab") as file:
        file.write(line("unit" if isinstance(what, Unit) else "triage", rounded(value)))


def line(kind: str, value: Mapping[str, Any]) -> bytes:
    """Return one line of a log."""
    return (json.dumps({kind: value}, separators=(",", ":")) + "\n").encode()


def rounded(value: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with floats rounded to six digits."""

    def short(one):
        if isinstance(one, float):
            return round(one, 6)
        return tuple(map(short, one)) if isinstance(one, tuple) else one

    return {name: short(one) for name, one in value.items()}


def read_log(path: Path) -> Log:
    """Return a log's contents. A truncated last line is left out.

    Raises ValueError, naming the line, for what is no such log, OSError for no file.
    """
    manifest, units, divergences = None, [], []
    for number, (kind, value) in lines(path):
        try:
            if kind == "manifest":
                manifest = value
            elif kind == "unit":
                requests = tuple(read_record(one) for one in value.pop("requests"))
                units.append(Unit(**value, requests=requests))
            elif kind == "triage":
                divergences.append(Divergence(**value))
            else:
                raise ValueError(f"a line is a manifest, a unit or a triage, not {kind!r}")
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(f"{path} line {number} is not of a specjax ab log: {error}") from None
    if manifest is None:
        raise ValueError(f"{path} is no log of specjax ab: its first line must be the manifest.")
    return Log(manifest, tuple(units), tuple(divergences))


def lines(path: Path) -> Iterator[tuple[int, tuple[str, Any]]]:
    """Yield (number, (kind, value)) of every complete line."""
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
    """Remove a truncated last line, so that more lines can be appended."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        with write_atomically(path) as file:
            file.write(whole)


def read_record(value: Mapping[str, Any]) -> Record:
    """Return one request from its JSON value. Raises TypeError for unknown or missing names."""
    as_tuple = ("times", "counts", "tokens", "accepted", "drafted")
    given = dict(value)
    for name in as_tuple:
        if isinstance(given.get(name), Sequence):
            given[name] = tuple(given[name])
    return Record(**given)
