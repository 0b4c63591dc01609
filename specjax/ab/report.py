"""Reports of a log: sentences, JSON and one HTML page."""

import base64
import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from matplotlib.axes import Axes

from specjax.ab.event_logs import write_event_logs
from specjax.ab.figures import pictures
from specjax.ab.findings import Findings
from specjax.ab.tables import cells, columns, settings
from specjax.audit.greedy import BITWISE, is_equal
from specjax.host.files import write_atomically, write_json
from specjax.viz.figure import figure_of

Echo = Callable[[str], None]
TEMPLATE = Path(__file__).parent / "report.html.j2"


def sentences(found: Findings) -> list[str]:
    """Return sentences on failures, equal texts, accuracy, predicted gains, and warnings."""
    lines = list(filter(None, [settings(found.log)]))
    for side in found.measures:
        who = f"{side.dataset}, load {side.concurrency or 'open'}, {side.arm}"
        lines += [f"{who}: failed {n}x: {kind}" for kind, n in side.failures.items()]
        if side.loops:
            lines.append(
                f"{who}: {side.loops:.0%} of the texts are loops (under half of their bigrams "
                "distinct): speculation looks better on them than it is"
            )
        if side.retokenized is not None and abs(side.retokenized - 1) > 0.02:
            lines.append(
                f"{who}: the usage counts {1 / side.retokenized:.3f} tokens for each that its text "
                "has by the given tokenizer"
            )
    for one, why in zip(found.comparisons, found.why, strict=True):
        load = f"load {one.base.concurrency or 'open'}"
        who = f"{one.arm.dataset}, {load}, {one.arm.arm} over {one.base.arm}"
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
    """Write result.json, report.html and the event logs of arms whose rounds are known."""
    write_json(folder / "result.json", to_json(found))
    with write_atomically(folder / "report.html") as file:
        file.write(page(found).encode())
    echo(f"wrote {folder / 'result.json'} and {folder / 'report.html'}")
    for path in write_event_logs(found.log, folder):
        echo(f"wrote {path} (specjax explain --trace reads it)")


def to_json(found: Findings) -> dict[str, Any]:
    """Return all findings as JSON values."""
    return {
        "manifest": found.log.manifest,
        "bases": {"first": found.bases.first, "own": dict(found.bases.own)},
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
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        manifest=found.log.manifest,
        columns=columns(found),
        rows=list(cells(found)),
        bases=found.bases,
        measures=[plain(one) for one in found.measures],
        sentences=sentences(found),
        pictures=[data_url(axes) for axes in pictures(found)],
        command=found.log.manifest.get("command", ""),
    )


def data_url(axes: Axes) -> str:
    """Return axes' figure as a data URL of an SVG."""
    file = io.BytesIO()
    figure_of(axes).savefig(file, format="svg")
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()
