"""Acceptance of a draft's first token, by the length of the match behind it."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax import theory
from specjax.viz.palette import GRID, LINES, MARKS, QUIET, SMALL


class Line(NamedTuple):
    """One drafter's line; match lengths without drafts are left out."""

    match: Int[np.ndarray, "M"]
    num_drafts: Int[np.ndarray, "M"]
    rate: Float[np.ndarray, "M"]
    low: Float[np.ndarray, "M"]  # of Wilson's 95% interval
    high: Float[np.ndarray, "M"]


def acceptance_by_match(
    drafters: Mapping[str, tuple[Int[np.ndarray, "N"], Bool[np.ndarray, "N"]]],
    longest: int = 12,
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> tuple[dict[str, Line], Axes]:
    """Draw acceptance against match length; matches of ``longest`` and more are one point.

    ``drafters`` maps a name to each draft's match length and whether its first token was right.
    Returns the lines and the axes.
    """
    if ax is None:
        ax = Figure(figsize=(7.2, 4.0), dpi=150, layout="constrained").add_subplot()
    lines = {}
    for number, (name, (match, right)) in enumerate(drafters.items()):
        line = lines[name] = count(np.minimum(match, longest), right)
        ax.errorbar(
            line.match + 0.08 * number,
            line.rate,
            [line.rate - line.low, line.high - line.rate],
            color=LINES[number],
            marker=MARKS[number],
            markersize=5,
            linewidth=1.6,
            elinewidth=0.8,
            label=f"{name}: {line.num_drafts.sum():,} drafts",
        )
    ax.set_xticks(range(1, longest + 1), [*map(str, range(1, longest)), f"{longest}+"])
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("tokens that matched", fontsize=SMALL)
    ax.set_ylabel("first draft token right", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.grid(color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    said = "The longer the match, the better the draft" if title is None else title
    ax.set_title(said, fontsize=11, loc="left")
    ax.legend(frameon=False, fontsize=SMALL, labelcolor=QUIET, loc="lower right")
    return lines, ax


def count(match: Int[np.ndarray, "N"], right: Bool[np.ndarray, "N"]) -> Line:
    """Return the numbers of drafts and of accepted first tokens by match length."""
    lengths = np.unique(match[match > 0])
    drafts = np.array([(match == length).sum() for length in lengths])
    hits = np.array([right[match == length].sum() for length in lengths])
    interval = theory.acceptance_ci(hits, drafts)
    return Line(lengths, drafts, hits / drafts, interval.low, interval.high)
