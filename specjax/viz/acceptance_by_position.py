"""Acceptance by draft position, with intervals, against one alpha's prediction."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax import theory
from specjax.theory.arrays import Scalar, require
from specjax.viz.palette import BLUE, GRID, QUIET, SMALL, VERMILION


class Positions(NamedTuple):
    """The numbers of the figure, by position 1 .. K."""

    marginal: theory.Interval  # [K] share of drafts that accepted this position
    conditional: theory.Interval  # [K] given that all before were accepted; NaN: none got there
    alpha: Scalar  # of the same mean acceptance length, if positions were alike
    tokens_per_step: float  # measured, the target's own included
    expected: Float[np.ndarray, "K"]  # marginal shares of that alpha: alpha^i


def acceptance_by_position(
    accepted_per_pos: Sequence[int],
    num_drafts: int,
    *,
    level: Scalar = 0.95,
    title: str | None = None,
    ax: Axes | None = None,
) -> tuple[Positions, Axes]:
    """Draw the marginal and conditional acceptance of each position, with Wilson intervals.

    ``accepted_per_pos`` [K] counts the drafts that accepted more than i tokens (as
    ``metrics.SpecDecodeCounters`` does), of ``num_drafts``. Conditional rates that are level are
    one alpha; rising or falling ones are not, and no single alpha predicts them. Intervals take
    drafts as independent. Returns the numbers and the axes.
    Raises ValueError for no drafts or positions, or counts that rise or exceed ``num_drafts``.
    """
    require("num_drafts", num_drafts, 1)
    counts = np.asarray(accepted_per_pos, np.float64)
    require("the number of positions", counts.size, 1)
    reached = np.concatenate([[float(num_drafts)], counts[:-1]])
    require("the fall of accepted_per_pos", reached - counts, 0)
    marginal = theory.acceptance_ci(counts, float(num_drafts), level=level)
    some = reached > 0
    found = theory.acceptance_ci(np.where(some, counts, 0), np.maximum(reached, 1), level=level)
    conditional = theory.Interval(*(np.where(some, one, np.nan) for one in found))
    tokens = float(theory.tokens_from_positions(marginal=marginal.estimate))
    alpha = float(theory.alpha_from_length(tokens, counts.size))
    place = np.arange(1, counts.size + 1)
    data = Positions(marginal, conditional, alpha, tokens, alpha**place)
    if ax is None:
        figure = Figure(figsize=(7.2, 4.0), dpi=150, layout="constrained")
        ax = figure.add_subplot()
    for shift, colour, mark, share, said in (
        (-0.08, BLUE, "o", marginal, "accepted at i / drafts (vLLM's rate)"),
        (0.08, VERMILION, "s", conditional, "accepted at i / accepted at i - 1"),
    ):
        below, above = share.estimate - share.low, share.high - share.estimate
        ax.errorbar(
            place + shift,
            share.estimate,
            yerr=[below, above],
            color=colour,
            marker=mark,
            markersize=6,
            linewidth=1.2,
            linestyle="none",
            capsize=3,
            label=said,
        )
    ax.plot(
        place,
        data.expected,
        color=BLUE,
        linestyle=(0, (4, 2)),
        linewidth=1.2,
        label="alpha^i, were all positions alike",
    )
    ax.axhline(
        alpha,
        color=VERMILION,
        linestyle=(0, (1, 1.5)),
        linewidth=1.2,
        label=f"one alpha = {alpha:.3f} of the same {tokens:.2f} tokens per step",
    )
    ax.set(xlim=(0.5, counts.size + 0.5), ylim=(0, 1.02))
    ax.set_xticks(place)
    ax.set_xlabel("draft position i", fontsize=SMALL)
    ax.set_ylabel(f"acceptance rate, {level:.0%} intervals", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.grid(axis="y", color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    said = f"Acceptance by position, {num_drafts:,} drafts" if title is None else title
    ax.set_title(said, fontsize=11, loc="left")
    ax.legend(frameon=False, fontsize=SMALL, labelcolor=QUIET)
    return data, ax
