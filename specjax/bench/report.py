"""A benchmark's rows: measured values with peers, ratios and goals, as JSON and as a table."""

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specjax.host.files import write_json
from specjax.host.markdown import replace_section, table


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured value; ``goal`` bounds ``ratio`` = value / peer, or ``value`` without a peer."""

    name: str
    value: int | float
    unit: str
    peer: int | float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None  # of the ratio
    against: str | None = None  # what ``peer`` is
    goal: str | None = None
    met: bool | None = None


def compare(
    name: str,
    value: int | float,
    unit: str,
    peer: int | float,
    against: str,
    *,
    at_most: int | float | None = None,
    at_least: int | float | None = None,
    ratio: float | None = None,
    interval: tuple[float, float] | None = None,
) -> Row:
    """Return the row that compares a value with a peer's, with a goal for their ratio if given.

    ``ratio`` is for one that was measured otherwise than as value / peer, such as turn by turn;
    ``interval`` says how sure it is, and does not change whether the goal is met.
    """
    ratio, goal, met = value / peer if ratio is None else ratio, None, None
    if at_most is not None:
        goal, met = f"<= {at_most:g}", ratio <= at_most
    if at_least is not None:
        goal, met = f">= {at_least:g}", ratio >= at_least
    return Row(
        name=name,
        value=value,
        unit=unit,
        peer=peer,
        ratio=ratio,
        interval=interval,
        against=against,
        goal=goal,
        met=met,
    )


def machine_row() -> Row:
    """Return the row that describes the machine."""
    names = ("jax", "jaxlib", "numpy")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    where = f"{platform.platform()}, python {platform.python_version()}, {versions}"
    return Row(name="machine", value=num_cores(), unit="cores", against=where)


def num_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


MOST_LOAD = 0.25  # cores that others may keep busy while goals are judged


def busy() -> float:
    """Return the cores that other processes keep busy while this one sleeps for half a second.

    The load average of the last minute where there is no /proc/stat; 0 without either. It would
    count what this process itself, or the command before it, has just done.
    """
    if not Path("/proc/stat").is_file():
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    before = busy_ticks()
    time.sleep(0.5)
    return (busy_ticks() - before) / os.sysconf("SC_CLK_TCK") / 0.5


def busy_ticks() -> int:
    """Return how long all cores have been busy since the machine started, in clock ticks."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:9])
    return user + nice + system + sum(interrupts)


def write_rows(rows: Sequence[Row], file: Path) -> None:
    """Write the rows to a file as a JSON list of objects."""
    write_json(file, [asdict(row) for row in rows], indent=1)


def write_section(
    rows: Sequence[Row], page: Path, name: str, notes: Sequence[str] = (), *, judged: bool = True
) -> None:
    """Put the rows as a table, and notes under it, into section ``name`` of a Markdown page.

    The arguments are those of ``print_rows``. Raises ValueError if the page lacks the section.
    """
    cells = [
        (
            row.name,
            f"{number(row.value)} {row.unit}",
            "" if row.peer is None else f"{row.against}: {number(row.peer)}",
            ratio_of(row),
            (row.goal or "") + ", missed" * (row.goal is not None and judged and not row.met),
        )
        for row in rows
        if row.name not in ("machine", row.against)
    ]
    lines = table(("what", "ours", "against", "ratio", "wanted"), cells)
    replace_section(page, name, [*lines, "", *notes])


def print_rows(rows: Sequence[Row], console: Console, *, judged: bool = True) -> None:
    """Print the rows, as a table on a terminal and as plain lines elsewhere.

    The row of a peer itself (``name`` equal to ``against``) is left out. ``judged`` False omits
    whether goals were met.
    """
    table = Table("name", "value", "peer", "ratio", "goal")
    for row in rows:
        if row.name == row.against:
            continue
        value = f"{number(row.value)} {row.unit}"
        peer = "" if row.peer is None else f"{number(row.peer)} ({row.against})"
        ratio = ratio_of(row)
        goal, style = row.goal or "", ""
        if row.goal is not None and judged:
            goal += " met" if row.met else " missed"
            style = "green" if row.met else "yellow"
        table.add_row(row.name, value, peer, ratio, Text(goal, style))
        if not console.is_terminal:
            words = (f"peer {peer}" * bool(peer), f"ratio {ratio}" * bool(ratio))
            extra = (*words, f"goal {goal}" * bool(goal))
            console.print("; ".join((f"{row.name}: {value}", *filter(None, extra))), soft_wrap=True)
    if console.is_terminal:
        console.print(table)


def ratio_of(row: Row) -> str:
    """Return a row's ratio as text, with its interval."""
    if row.ratio is None:
        return ""
    low_high = "" if row.interval is None else " ({:.2f} to {:.2f})".format(*row.interval)
    return f"{row.ratio:.2f}{low_high}"


def number(value: int | float) -> str:
    """Return a number as text, with digits that suit its magnitude."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"
