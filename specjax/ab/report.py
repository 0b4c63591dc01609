"""Reports of a log: a table, JSON, canonical event logs and one HTML page."""

import base64
import io
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

from specjax.ab.compare import Comparison, by_load, compare
from specjax.ab.measures import Measures, measure
from specjax.ab.records import Log, Record, Unit
from specjax.audit.greedy import BITWISE, is_equal
from specjax.host.files import write_atomically, write_json
from specjax.host.markdown import table as markdown_table
from specjax.theory.intervals import Interval
from specjax.traces.events import Event, write_trace
from specjax.traces.explain import Explanation, Measured, explain
from specjax.viz.acceptance_by_position import acceptance_by_position
from specjax.viz.figure import figure_of
from specjax.viz.gains import Gain, gains, predicted_against_measured

Echo = Callable[[str], None]
TEMPLATE = Path(__file__).parent / "report.html.j2"


class Findings(NamedTuple):
    """Metrics and comparisons derived from a log."""

    log: Log
    measures: tuple[Measures, ...]
    comparisons: tuple[Comparison, ...]
    why: tuple[Explanation | None, ...]  # of each comparison


def find(log: Log) -> Findings:
    """Return the metrics and comparisons of a log. Raises ValueError for an empty one."""
    if not log.units:
        raise ValueError("the log has no measured block yet: give the same command to go on.")
    slo = log.manifest["wanted"]["plan"]["slo"]
    labels = [one["label"] for one in log.manifest["arms"]]
    greedy = log.manifest["ask"]["temperature"] == 0
    measures, comparisons, why = [], [], []
    for arms in by_load(log.units).values():
        known = {
            label: (measure(arms[label], slo), arms[label]) for label in labels if label in arms
        }
        measures += [found for found, _ in known.values()]
        for label in labels[1:]:
            if label in known and labels[0] in known:
                base, arm = known[labels[0]], known[label]
                comparisons.append(compare(base, arm, greedy=greedy))
                why.append(explained(base[1], arm[1], arm[0]))
    return Findings(log, tuple(measures), tuple(comparisons), tuple(why))


def explained(base: Sequence[Unit], arm: Sequence[Unit], found: Measures) -> Explanation | None:
    """Return a gain split into tokens per round and the cost of a round.

    A round's time is the median gap between two chunks. None unless both arms have tokens per
    chunk and the arm has counters.
    """
    counted, rounds = found.counters, chunks(arm)
    plain = chunks(base)
    if counted is None or not counted.num_drafts or not len(rounds) or not len(plain):
        return None
    gaps, tokens = rounds.T
    depth = len(counted.num_accepted_tokens_per_pos)
    per_round = min(max(float(tokens.mean()), 1.0), 1.0 + depth)
    drafted = counted.num_draft_tokens / max(len(rounds), counted.num_drafts)
    return explain(
        Measured(
            num_speculative_tokens=depth,
            plain_s=float(np.median(plain[:, 0] / plain[:, 1])),
            round_s=float(np.median(gaps)),
            tokens_per_round=per_round,
            mean_drafted=float(min(max(drafted, per_round - 1.0), depth)),
            batch_size=max(round(found.occupancy), 1),
        )
    )


def chunks(units: Sequence[Unit]) -> np.ndarray:
    """Return (seconds since the previous chunk, tokens) of every chunk but the first, [C, 2]."""
    rows = [
        (gap, count)
        for unit in units
        for one in unit.requests
        if one.error is None and one.counts
        for gap, count in zip(np.diff(one.times), one.counts[1:], strict=True)
    ]
    return np.array(rows, np.float64).reshape(-1, 2)


COLUMNS = ("dataset", "load", "arm", "in", "out", "requests", "base's TPOT ms", "base's TPS")
COLUMNS += ("TPOT ms", "TPS", "accepted", "TPOT gain", "TPS gain", "same text")
ON_A_PAGE = ("load", "arm", "TPOT ms", "TPS", "accepted", "TPOT gain", "TPS gain", "same text")


def table(found: Findings) -> Table:
    """Return the comparisons as the table that is printed; gains are base / arm - 1."""
    shown = Table(title=None, box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        shown.add_column(name, justify="left" if name in ("dataset", "arm") else "right")
    for one in found.comparisons:
        shown.add_row(*row(one))
    return shown


def row(one: Comparison) -> list[str]:
    """Return one comparison as the cells of a table row."""
    base, arm = one.base, one.arm
    return [
        base.dataset,
        str(base.concurrency or "open"),
        arm.arm,
        f"{arm.mean_input:.0f}",
        f"{arm.mean_output:.0f}",
        str(arm.num_requests) + failures(base, arm),
        in_ms(base),
        f"{base.tps:.1f}",
        in_ms(arm),
        f"{arm.tps:.1f}",
        rate(arm),
        percent(one.tpot_gain),
        percent(one.tps_gain),
        "-" if one.equality is None else f"{one.equality.equal}/{one.equality.compared}",
    ]


def markdown(found: Findings) -> list[str]:
    """Write the comparisons as a section of a Markdown file; the base of each load comes first."""
    lines, load = [], None
    for one in found.comparisons:
        base = one.base
        if (base.dataset, base.concurrency) != load:
            load = base.dataset, base.concurrency
            first = (base.concurrency or "open", base.arm, in_ms(base), f"{base.tps:.1f}")
            lines.append([*map(str, first), "-", "-", "-", "-"])
        cells = dict(zip(COLUMNS, row(one), strict=True))
        lines.append([cells[name] for name in ON_A_PAGE])
    plan, manifest = found.log.manifest["wanted"]["plan"], found.log.manifest
    notes = [
        f"{found.comparisons[0].num_pairs} prompts, {plan['rounds']} times each; "
        f"{manifest['host']}, {manifest['date'][:10]}, specjax {manifest['specjax']}.",
        settings(found.log),
        "Gains over the first arm have 95% intervals over prompts.",
    ]
    return [*markdown_table(ON_A_PAGE, lines), "", " ".join(filter(None, notes))]


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


def failures(base: Measures, arm: Measures) -> str:
    """Return the numbers of failed requests of the base and of the arm, as text."""
    lost = sum(base.failures.values()), sum(arm.failures.values())
    return f" (failed {lost[0]}+{lost[1]})" if any(lost) else ""


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


def sentences(found: Findings) -> list[str]:
    """Return sentences on failures, equal texts, accuracy, predicted gains, and warnings."""
    lines = list(filter(None, [settings(found.log)]))
    for one, why in zip(found.comparisons, found.why, strict=True):
        who = f"{one.arm.dataset}, load {one.base.concurrency or 'open'}, {one.arm.arm}"
        for side in (one.base, one.arm):
            lines += [f"{who}: {side.arm} failed {n}x: {kind}" for kind, n in side.failures.items()]
            if side.loops:
                lines.append(
                    f"{who}: {side.loops:.0%} of {side.arm}'s texts are loops (under half of "
                    "their bigrams distinct): speculation looks better on them than it is"
                )
            if side.retokenized is not None and abs(side.retokenized - 1) > 0.02:
                lines.append(
                    f"{who}: {side.arm}'s usage counts {1 / side.retokenized:.3f} tokens for each "
                    "that its text has by the given tokenizer"
                )
        if one.accuracy is not None:
            a = one.accuracy
            lines.append(
                f"{who}: accuracy {a.arm:.1%} against {a.base:.1%} ({a.won} gained, {a.lost} lost, "
                f"McNemar p = {a.p:.2g})" + (": speculation changed answers" if a.p < 0.01 else "")
            )
        if why is not None and why.speedup is not None:
            lines.append(
                f"{who}: a round brings {why.tokens_per_round:.2f} tokens at "
                f"{why.round_cost:.2f} plain steps: {why.speedup:.2f}x predicted"
                + ("" if one.tpot_gain is None else f", {one.tpot_gain.estimate:.2f}x measured")
            )
    bugs = [one for one in found.log.divergences if not one.passed]
    equal = [one for one in found.log.divergences if is_equal(one.verdict)]
    near = len(found.log.divergences) - len(bugs) - len(equal)
    if near:
        lines.append(f"{near} greedy texts part at a near tie (rounding)")
    if equal:
        num = sum(one.verdict.startswith(BITWISE) for one in equal)
        lines.append(
            f"{len(equal)} equal greedy texts written again: {num} with bitwise equal logprobs"
        )
    lines += [f"{one.dataset} {one.prompt}, {one.arm}: {one.verdict}" for one in bugs]
    return lines


def write_reports(found: Findings, folder: Path, echo: Echo) -> None:
    """Write result.json, report.html and, where rounds are known, an event log per arm."""
    write_json(folder / "result.json", to_json(found))
    with write_atomically(folder / "report.html") as file:
        file.write(page(found).encode())
    echo(f"wrote {folder / 'result.json'} and {folder / 'report.html'}")
    for label in dict.fromkeys(unit.arm for unit in found.log.units):
        events = canonical([unit for unit in found.log.units if unit.arm == label])
        if events:
            path = folder / f"events-{label}.jsonl"
            write_trace(path, events)
            echo(f"wrote {path} (specjax explain --trace reads it)")


def canonical(units: Sequence[Unit]) -> list[Event]:
    """Return the rounds of all requests as canonical events; [] if any round is unknown."""
    events, start = [], 0.0
    for unit in units:
        for one in unit.requests:
            if one.error is None:
                name = f"{unit.dataset}/{unit.concurrency}/{unit.block}/{one.prompt}"
                rounds = rounds_of(one)
                if rounds is None:
                    return []
                events += [
                    Event(name, step, *counts, time=start + one.sent + when)
                    for step, (counts, when) in enumerate(zip(rounds, one.times, strict=True))
                ]
        start += unit.seconds
    return events


def rounds_of(record: Record) -> list[tuple[int, int, int]] | None:
    """Return (drafted, accepted, emitted) per chunk, the prefill first; None if unknown."""
    if not record.counts or record.counts[0] != 1:
        return None
    if record.drafted is None or record.accepted is None:
        return [(0, 0, 1)] * len(record.counts) if set(record.counts) == {1} else None
    rounds = list(zip(record.drafted, record.accepted, record.counts[1:], strict=False))
    if len(rounds) != len(record.counts) - 1 or len(record.drafted) != len(rounds):
        return None
    if any(not 1 <= emitted <= accepted + 1 for _, accepted, emitted in rounds):
        return None
    return [(0, 0, 1), *rounds]


def to_json(found: Findings) -> dict[str, Any]:
    """Return all findings as JSON values."""
    return {
        "manifest": found.log.manifest,
        "measures": [plain(one) for one in found.measures],
        "comparisons": [
            {**plain(one._replace(base=None, arm=None)), "dataset": one.base.dataset}
            | {"concurrency": one.base.concurrency, "base": one.base.arm, "arm": one.arm.arm}
            for one in found.comparisons
        ],
        "why": [None if one is None else plain(one) for one in found.why],
        "triage": [one._asdict() for one in found.log.divergences],
    }


def plain(value: Any) -> Any:
    """Return NamedTuples, dataclasses and NumPy numbers as JSON values; NaN becomes null."""
    if hasattr(value, "_asdict"):
        return {name: plain(one) for name, one in value._asdict().items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def page(found: Findings) -> str:
    """Return one HTML page without external files."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    rows = [row(one) for one in found.comparisons]
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        manifest=found.log.manifest,
        columns=COLUMNS,
        rows=rows,
        measures=[plain(one) for one in found.measures],
        sentences=sentences(found),
        pictures=[data_url(axes) for axes in pictures(found)],
        command=found.log.manifest.get("command", ""),
    )


def pictures(found: Findings) -> Iterator[Axes]:
    """Return figures of the gains, predictions against measurements, and acceptance by position."""
    shown = [
        Gain(f"{one.arm.dataset}, {one.base.concurrency or 'open'}", one.arm.arm, one.tpot_gain,
             one.tps_gain)
        for one in found.comparisons
        if one.tpot_gain is not None and one.tps_gain is not None
    ]  # fmt: skip
    if shown:
        yield gains(shown)[1]
    pairs = [
        (one.arm.arm, why.speedup, one.tpot_gain)
        for one, why in zip(found.comparisons, found.why, strict=True)
        if why is not None and why.speedup is not None and one.tpot_gain is not None
    ]
    if pairs:
        yield predicted_against_measured(pairs)[1]
    for one in found.measures:
        counted = one.counters
        if counted is not None and counted.num_drafts:
            title = f"{one.arm}: {one.dataset}, load {one.concurrency or 'open'}"
            per_pos = counted.num_accepted_tokens_per_pos
            yield acceptance_by_position(per_pos, counted.num_drafts, title=title)[1]


def data_url(axes: Axes) -> str:
    """Return axes' figure as a data URL of an SVG."""
    file = io.BytesIO()
    figure_of(axes).savefig(file, format="svg")
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()
