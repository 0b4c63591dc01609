"""The audit of a server as one page of HTML, to attach to an issue."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from matplotlib.figure import Figure

from specjax.audit.server import Plan, Report
from specjax.viz.findings import Found, audit_findings

TEMPLATE = Path(__file__).parent / "audit_server.html.j2"
MOST_TEXTS = 8  # per prompt, those whose shares differ most


class Share(NamedTuple):
    """How often a server began with a text, and how often it should have."""

    tokens: Sequence[int]
    found: float
    expected: float


def audit_page(collected: dict[str, Any], report: Report, command: str) -> str:
    """Return the page: verdict, prompts, greedy texts, shares, and how to repeat it.

    Args:
        collected: what ``audit.server.collect`` returned.
        report: what ``judge`` made of it.
        command: the command line that repeats it, without keys.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    pairs = zip(collected["asked"], report.findings, strict=True)
    return template.render(
        collected=collected,
        report=report,
        plan=Plan(**collected["plan"]),
        command=command,
        picture=picture(report),
        shares=[(found, shares(one)) for one, found in pairs if found.differs],
    )


def shares(one: dict[str, Any]) -> list[Share]:
    """Return the texts of one prompt whose shares differ most from what they should be."""
    base = {tuple(tokens): count for tokens, count in one["base"]}
    other = {tuple(tokens): value for tokens, value in one["reference"] or one["law"]}
    totals = sum(base.values()), sum(other.values())
    found = [
        Share(text, base.get(text, 0) / totals[0], other.get(text, 0) / totals[1])
        for text in sorted(base.keys() | other.keys())
    ]
    return sorted(found, key=lambda share: -abs(share.found - share.expected))[:MOST_TEXTS]


def picture(report: Report) -> str:
    """Return the findings' figure as the address of an image."""
    rows = [
        Found(repr(one.prompt[-24:]), one.tv, one.expected_tv, one.differs)
        for one in report.findings
    ]
    _, axes = audit_findings(rows)
    buffer, figure = io.BytesIO(), axes.get_figure()
    assert isinstance(figure, Figure)
    figure.savefig(buffer, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
