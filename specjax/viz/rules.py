"""Verification rules side by side: how far from the target's distribution, for how many tokens."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specjax.audit.rules import EXACT, LOSSLESS, LOSSY, ROUNDING, Audit, Audited
from specjax.viz.palette import BLUE, GREEN, VERMILION

COLOURS = {LOSSLESS: BLUE, EXACT: GREEN, LOSSY: VERMILION}
MARKERS = {LOSSLESS: "s", EXACT: "o", LOSSY: "X"}
SAYS = {
    LOSSLESS: "lossless: same seed, same text",
    EXACT: "exact: the target's distribution",
    LOSSY: "lossy: another distribution",
}
NOTE = {"va": "top", "fontsize": 8, "color": "#333333"}
FLOOR = 1e-8  # where a total variation of 0 is drawn


class Point(NamedTuple):
    """One point of the figure, shared by rules with equal numbers."""

    names: tuple[str, ...]
    promise: str
    expected_length: float
    tv: float


def rule_comparison(
    audit: Audit, *, title: str | None = None, ax: Axes | None = None
) -> tuple[tuple[Point, ...], Axes]:
    """Draw total variation against expected length, and the optimal-transport bound.

    Only rules that were audited on the same drafts can be compared: those of the first row.
    Returns the points and the axes. Raises ValueError when there is no row.
    """
    if not audit.rows:
        raise ValueError("need at least one audited rule to compare, got none")
    points = group([row for row in audit.rows if row.shape == audit.rows[0].shape])
    if ax is None:
        ax = Figure(figsize=(8, 4.6), dpi=150, layout="constrained").add_subplot()
    ax.set_yscale("log")
    ax.axhspan(FLOOR / 3, ROUNDING, color=GREEN, alpha=0.08, linewidth=0)
    ax.axvline(audit.bound, color="black", linewidth=1, linestyle=(0, (4, 3)))
    for i, point in enumerate(sorted(points, key=lambda point: point.expected_length)):
        y, above = max(point.tv, FLOOR), i % 2 == 0  # neighbours' names must not meet
        ax.plot(
            point.expected_length, y, MARKERS[point.promise], color=COLOURS[point.promise], ms=8
        )
        ax.annotate(
            ", ".join(point.names),
            (point.expected_length, y),
            xytext=(4, 8 if above else -8),
            textcoords="offset points",
            ha="right" if point.expected_length <= audit.bound else "center",
            va="bottom" if above else "top",
            fontsize=9,
        )
    lengths = [point.expected_length for point in points]
    low, high = min(lengths), max(*lengths, audit.bound)
    ax.set_xlim(low - 0.12 * (high - low), high + 0.16 * (high - low))
    ax.set_ylim(FLOOR / 3, 8)
    ax.text(audit.bound, 8, " optimal transport: no exact rule is further right", **NOTE)
    ax.text(ax.get_xlim()[0], ROUNDING, " within float32 rounding of the target", **NOTE)
    ax.set_xlabel("expected tokens per round", fontsize=9)
    ax.set_ylabel("total variation from the target's distribution", fontsize=9)
    ax.tick_params(labelsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    said = "What a verification rule gives up, and what it gets for it" if title is None else title
    ax.set_title(said, fontsize=11, loc="left", pad=24)
    ax.legend(
        handles=[
            Line2D(
                [], [], linestyle="", marker=MARKERS[promise], color=COLOURS[promise], label=what
            )
            for promise, what in SAYS.items()
        ],
        loc="lower left",
        bbox_to_anchor=(-0.01, 0.99),
        ncols=len(SAYS),
        frameon=False,
        fontsize=9,
    )
    return points, ax


def group(rows: Sequence[Audited]) -> tuple[Point, ...]:
    """Return the points, with rules of one promise and equal numbers merged."""
    found: dict[tuple, list[Audited]] = {}
    for row in rows:
        found.setdefault((row.promise, round(row.expected_length, 5)), []).append(row)
    return tuple(
        Point(
            tuple(row.name for row in same),
            promise,
            same[0].expected_length,
            max(r.tv for r in same),
        )
        for (promise, _), same in found.items()
    )
