"""Tokens per round against the share of the output that occurs in the prompt."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import rankdata

from specjax.viz.palette import GRID, LINES, MARKS, QUIET, SMALL

STEP = 0.02  # to the left, for each point that lies where others do


class Points(NamedTuple):
    """The points of all requests, in the given order."""

    overlap: Float[np.ndarray, "R"]
    tokens_per_round: Float[np.ndarray, "R"]
    rank_correlation: float  # Spearman's


def gain_by_overlap(
    kinds: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> tuple[Points, Axes]:
    """Draw one point per request, one mark per kind of text.

    ``kinds`` maps a name to its requests' overlaps and tokens per round. Returns the points and
    the axes. Raises ValueError for fewer than three requests.
    """
    overlap, gain = (np.concatenate([one[i] for one in kinds.values()]) for i in (0, 1))
    if len(overlap) < 3:
        raise ValueError(f"need at least 3 requests to correlate, got {len(overlap)}")
    if ax is None:
        ax = Figure(figsize=(7.2, 4.0), dpi=150, layout="constrained").add_subplot()
    correlation = np.corrcoef(rankdata(overlap), rankdata(gain))[0, 1]
    points = Points(overlap, gain, float(correlation))
    seen: Counter[tuple[float, float]] = Counter()
    for (name, (x, y)), colour, mark in zip(kinds.items(), LINES, MARKS, strict=False):
        places = [(round(float(a), 2), round(float(b), 2)) for a, b in zip(x, y, strict=True)]
        shown = []
        for place, at in zip(places, x, strict=True):
            shown.append(at - STEP * seen[place])
            seen[place] += 1
        ax.plot(shown, y, color=colour, marker=mark, linestyle="none", markersize=6, label=name)
    said = "share of the output's token pairs that stand in the prompt"
    ax.set_xlabel(f"{said} (equal points side by side)", fontsize=SMALL)
    ax.set_ylabel("tokens per round", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.grid(color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    said = f"What repeats itself is drafted: rank correlation {points.rank_correlation:.2f}"
    ax.set_title(said if title is None else title, fontsize=11, loc="left")
    ax.legend(frameon=False, fontsize=SMALL, labelcolor=QUIET)
    return points, ax
