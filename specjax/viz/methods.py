"""Methods side by side: tokens per round, and the speedup."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from specjax.viz.palette import BLUE, SKY, VERMILION

TOKENS, SPEEDUP, SLOWER = SKY, BLUE, VERMILION
NOTE_WIDTH = 90  # characters
LEGEND = (
    ("tokens per round", TOKENS),
    ("speedup", SPEEDUP),
    ("speed, where slower than plain", SLOWER),
)


class Method(NamedTuple):
    """One method's measurements on the common prompts."""

    name: str
    tokens_per_second: float
    speedup: float  # over plain decoding
    tokens_per_round: float  # the target's recovered or bonus token included
    acceptance: float | None  # accepted / drafted; None: nothing was drafted
    spread: tuple[float, float] | None = None  # least and greatest speedup of several runs


class Bars(NamedTuple):
    """One method's part of the figure."""

    name: str
    tokens_per_round: float
    speedup: float
    round_cost: float  # derived: tokens_per_round / speedup, in plain decoding's steps


def method_comparison(
    rows: Sequence[Method],
    *,
    title: str | None = None,
    note: str | None = None,
    ax: Axes | None = None,
) -> tuple[tuple[Bars, ...], Axes]:
    """Draw two bars per method, tokens per round and speedup, and a line at plain decoding.

    Both are multiples of plain decoding, and their quotient is what a round costs: a method
    gains when its rounds bring more tokens than they cost. ``note`` says under the picture
    how it was measured. Returns the bars and the axes.
    Raises ValueError when there is nothing to draw or a number is not positive.
    """
    if not rows:
        raise ValueError("need at least one method to compare, got none")
    for row in rows:
        if not (row.speedup > 0 and row.tokens_per_round > 0):
            raise ValueError(f"speedup and tokens_per_round must be positive, got {row}")
    bars = tuple(
        Bars(
            row.name,
            float(row.tokens_per_round),
            float(row.speedup),
            row.tokens_per_round / row.speedup,
        )
        for row in rows
    )
    if ax is None:
        figure = Figure(figsize=(8, 2.1 + 0.75 * len(rows)), dpi=150, layout="constrained")
        ax = figure.add_subplot()
    slower = any(bar.speedup < 1 for bar in bars)
    shown = [(colour, what) for what, colour in LEGEND if colour != SLOWER or slower]
    reach = max(max(bar.tokens_per_round, bar.speedup) for bar in bars)
    for y, (row, bar) in enumerate(zip(rows, bars, strict=True)):
        brought = f"{bar.tokens_per_round:.2f} tokens per round"
        if row.acceptance is not None:
            brought += f", a round costs {bar.round_cost:.2f}*"
        draw_bar(ax, y - 0.19, bar.tokens_per_round, TOKENS, brought, reach)
        word, colour = ("speedup", SPEEDUP) if bar.speedup >= 1 else ("of plain's speed", SLOWER)
        left = f"{bar.speedup:.2f}x {word}, {row.tokens_per_second:,.0f} tokens/s"
        if row.spread is not None:
            left += f" ({row.spread[0]:.2f}x to {row.spread[1]:.2f}x)"
        draw_bar(ax, y + 0.19, bar.speedup, colour, left, reach)
    ax.axvline(1.0, color="black", linewidth=1, linestyle=(0, (4, 3)))
    ax.set_yticks(range(len(rows)), [describe(row) for row in rows], fontsize=9)
    ax.set(xlim=(0, reach * 1.9), ylim=(len(rows) - 0.45, -0.6))
    under = ["multiples of plain decoding (dashed line)", textwrap.fill(note or "", NOTE_WIDTH)]
    if any(row.acceptance is not None for row in rows):
        under.append("* in plain steps; derived: tokens per round / speedup")
    ax.set_xlabel("\n".join(filter(None, under)), fontsize=9)
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", labelsize=9)
    ax.spines[["top", "right", "left"]].set_visible(False)
    said = "Tokens per round, and the speedup left after its cost" if title is None else title
    ax.set_title(said, fontsize=11, loc="left", pad=24)
    ax.legend(
        handles=[Patch(color=colour, label=what) for colour, what in shown],
        loc="lower left",
        bbox_to_anchor=(-0.01, 0.99),
        ncols=len(LEGEND),
        frameon=False,
        fontsize=9,
    )
    return bars, ax


def describe(row: Method) -> str:
    """Return a method's label: its name over its acceptance rate."""
    if row.acceptance is None:
        return row.name
    return f"{row.name}\n{row.acceptance:.0%} of drafted accepted"


def draw_bar(ax: Axes, y: float, value: float, colour: str, note: str, reach: float) -> None:
    """Draw a horizontal bar with its numbers to the right, past the line at 1."""
    ax.barh(y, value, height=0.36, color=colour)
    behind = max(value, 1.0) + 0.02 * reach
    ax.text(behind, y, note, va="center", fontsize=9, color="#333333")
