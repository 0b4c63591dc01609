"""Measured total variations of an audit, beside those expected from sampling noise alone."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from specjax.viz.palette import GREEN, VERMILION

CHANCE, SAME, DIFFERENT = "#BBBBBB", GREEN, VERMILION
LEAST = 1e-3  # where the axis begins


class Found(NamedTuple):
    """One row of the figure."""

    name: str
    tv: float  # between two samples, or a sample and a distribution
    expected_tv: float  # if the distributions were the same
    differs: bool  # the test's result


def audit_findings(
    rows: Sequence[Found], *, title: str | None = None, ax: Axes | None = None
) -> tuple[tuple[float, ...], Axes]:
    """Draw measured total variations as dots over bars of what sampling noise alone gives.

    Two samples of one distribution are never equal: a dot at the end of its bar is good news.
    Rows of one name, such as prompts of one server, share a line. Returns the ratios of measured
    to expected, and the axes. Raises ValueError when there is no row.
    """
    if not rows:
        raise ValueError("need at least one finding to draw, got none")
    lines: dict[str, list[Found]] = {}
    for row in rows:
        lines.setdefault(row.name, []).append(row)
    if ax is None:
        figure = Figure(figsize=(8, 1.6 + 0.32 * len(lines)), dpi=150, layout="constrained")
        ax = figure.add_subplot()
    for line, same in enumerate(lines.values()):
        thick = 0.8 / len(same)
        for i, row in enumerate(same):
            y = line - 0.4 + (i + 0.5) * thick
            length = max(row.expected_tv - LEAST, 0)
            ax.barh(y, length, left=LEAST, height=0.88 * thick, color=CHANCE)
            colour, marker = (DIFFERENT, "X") if row.differs else (SAME, "o")
            ax.plot(max(row.tv, LEAST), y, marker, color=colour, ms=8 if len(same) == 1 else 5)
    ax.set_xscale("log")
    ax.set(xlim=(LEAST, 1.2), ylim=(len(lines) - 0.4, -0.6))
    ax.set_yticks(range(len(lines)), list(lines), fontsize=9)
    ax.set_xlabel("total variation", fontsize=9)
    ax.tick_params(labelsize=9)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    said = "What sampling finds, and what chance alone would show"
    ax.set_title(said if title is None else title, fontsize=11, loc="left", pad=24)
    ax.legend(
        handles=[
            Patch(color=CHANCE, label="expected of one distribution"),
            Line2D([], [], linestyle="", marker="o", color=SAME, label="not told apart"),
            Line2D([], [], linestyle="", marker="X", color=DIFFERENT, label="another distribution"),
        ],
        loc="lower left",
        bbox_to_anchor=(-0.01, 0.99),
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    return tuple(row.tv / row.expected_tv for row in rows), ax
