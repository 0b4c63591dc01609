"""Tables of a comparison: printed, and as a section of a Markdown page."""

import math
import shlex
from collections.abc import Iterator

from rich.table import Table

from specjax.ab.compare import Comparison
from specjax.ab.findings import Findings, Row, rows
from specjax.ab.measures import Measures
from specjax.ab.records import Log
from specjax.host.markdown import table as markdown_table
from specjax.theory.intervals import Interval

LEFT = "dataset", "arm", "base"
BESIDE_PAGE = "dataset", "in", "out", "requests"  # columns that a page leaves out


def columns(found: Findings) -> tuple[str, ...]:
    """Return the headings of the table; arms with two bases have their gains over both."""
    names = ("dataset", "load", "arm", "in", "out", "requests", "TPOT ms", "TPS", "accepted")
    gains = ("TPOT gain", "TPS gain")
    if found.bases.several:
        gains = ("base", *gains, *(f"{one} over {found.bases.first}" for one in gains))
    return (*names, *gains, "same text")


def cells(found: Findings) -> Iterator[list[str]]:
    """Yield the table's rows; gains are base / arm - 1."""
    for one in rows(found):
        arm = one.measures
        line = [
            arm.dataset,
            str(arm.concurrency or "open"),
            arm.arm,
            f"{arm.mean_input:.0f}",
            f"{arm.mean_output:.0f}",
            str(arm.num_requests) + failures(arm),
            in_ms(arm),
            f"{arm.tps:.1f}",
            rate(arm),
        ]
        if found.bases.several:
            line += ["-" if one.own is None else one.own.base.arm, *gains_of(one.own)]
            line += gains_of(one.first)
        else:
            line += gains_of(one.own)
        yield [*line, same_text(one)]


def table(found: Findings) -> Table:
    """Return the table that is printed."""
    shown = Table(title=None, box=None, pad_edge=False, header_style="bold")
    for name in columns(found):
        shown.add_column(name, justify="left" if name in LEFT else "right")
    for line in cells(found):
        shown.add_row(*line)
    return shown


def markdown(found: Findings) -> list[str]:
    """Return the table as a section of a Markdown page."""
    names = columns(found)
    kept = [i for i, name in enumerate(names) if name not in BESIDE_PAGE]
    lines = [[line[i] for i in kept] for line in cells(found)]
    plan, manifest = found.log.manifest["wanted"]["plan"], found.log.manifest
    notes = [
        f"{found.comparisons[0].num_pairs} prompts, {plan['rounds']} times each; "
        f"{manifest['host']}, {manifest['date'][:10]}, specjax {manifest['specjax']}.",
        settings(found.log),
        "Gains have 95% intervals over prompts. The texts are compared with those of "
        f"{found.bases.first}.",
    ]
    return [*markdown_table([names[i] for i in kept], lines), "", " ".join(filter(None, notes))]


def settings(log: Log) -> str:
    """Return a sentence with the settings of the servers started for a comparison."""
    given_by_arm = []
    for arm in log.manifest["arms"]:
        if arm["kind"] in ("serve", "vllm"):
            # Logs of before arms had arguments: vLLM was made to run so
            old = ["--dtype", "float32", "--enforce-eager"] if arm["kind"] == "vllm" else []
            given_by_arm.append((arm["label"], shlex.join(arm.get("arguments", old))))
    given = "; ".join(f"{label}: {arguments}" for label, arguments in given_by_arm if arguments)
    plain = ", ".join(label for label, arguments in given_by_arm if not arguments)
    parts = [f"With {given}." * bool(given), f"With their defaults: {plain}." * bool(plain)]
    return " ".join(filter(None, parts))


def failures(arm: Measures) -> str:
    """Return the number of failed requests, as text."""
    lost = sum(arm.failures.values())
    return f" (failed {lost})" if lost else ""


def gains_of(one: Comparison | None) -> list[str]:
    """Return a comparison's gains in TPOT and TPS, as text."""
    return ["-", "-"] if one is None else [percent(one.tpot_gain), percent(one.tps_gain)]


def same_text(one: Row) -> str:
    """Return how many greedy texts are those of the first base, as text."""
    compared = one.first or one.own
    equality = compared and compared.equality
    return "-" if equality is None else f"{equality.equal}/{equality.compared}"


def in_ms(found: Measures) -> str:
    """Return a mean TPOT in milliseconds, as text."""
    return "-" if found.tpot is None else f"{1e3 * found.tpot.mean:.2f}"


def rate(found: Measures) -> str:
    """Return accepted / drafted, as text."""
    counted = found.counters and found.counters.acceptance_rate
    return "-" if counted is None else f"{counted:.1%}"


def percent(gain: Interval | None) -> str:
    """Return a gain in percent with its interval, as text."""
    if gain is None:
        return "-"
    value, low, high = (100 * (float(one) - 1) for one in gain)
    if math.isnan(low):
        return f"{value:+.1f}%"
    return f"{value:+.1f}% [{low:+.1f}, {high:+.1f}]"
