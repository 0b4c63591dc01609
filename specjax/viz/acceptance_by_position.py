"""Acceptance by draft position, with intervals over requests, against one alpha's prediction."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax import theory
from specjax.theory.arrays import Scalar, require
from specjax.traces.positions import share, stack
from specjax.viz.palette import BLUE, GRID, QUIET, SMALL, VERMILION


class Drafts(NamedTuple):
    """Every draft, for intervals over requests."""

    accepted: Int[np.ndarray, "D"]  # tokens of it that were accepted
    request: Int[np.ndarray, "D"]  # whose it was


class Positions(NamedTuple):
    """The numbers of the figure, by position 1 .. K. Intervals are NaN where there is none."""

    marginal: theory.Interval  # [K] share of drafts that accepted this position
    conditional: theory.Interval  # [K] given that all before were accepted; NaN: none got there
    alpha: Scalar  # of the same mean acceptance length, if positions were alike
    tokens_per_step: float  # measured, the target's own included
    expected: Float[np.ndarray, "K"]  # marginal shares of that alpha: alpha^i


def acceptance_by_position(
    accepted_per_pos: Sequence[int],
    num_drafts: int,
    *,
    drafts: Drafts | None = None,
    level: Scalar = 0.95,
    title: str | None = None,
    ax: Axes | None = None,
) -> tuple[Positions, Axes]:
    """Draw the marginal and conditional acceptance of each position.

    Conditional rates that are level are one alpha; rising or falling ones are not, and no single
    alpha predicts them. Drafts of one request resemble each other, so intervals are those of
    requests drawn anew (``theory.acceptance_ci_clustered``); counters alone have none.

    Args:
        accepted_per_pos: [K], the drafts that accepted more than i tokens, as
            ``metrics.SpecDecodeCounters`` counts them.
        num_drafts: how many drafts there were.
        drafts: the same drafts one by one, for the intervals.

    Returns:
        The numbers and the axes.

    Raises:
        ValueError: no drafts or positions, counts that rise or exceed ``num_drafts``, or
            ``drafts`` that are not those counted.
    """
    require("num_drafts", num_drafts, 1)
    counts = np.asarray(accepted_per_pos, np.float64)
    require("the number of positions", counts.size, 1)
    reached = np.concatenate([[float(num_drafts)], counts[:-1]])
    require("the fall of accepted_per_pos", reached - counts, 0)
    marginal, conditional = shares(counts, reached, drafts, level)
    tokens = float(theory.tokens_from_positions(marginal=marginal.estimate))
    alpha = float(theory.alpha_from_length(tokens, counts.size))
    place = np.arange(1, counts.size + 1)
    data = Positions(marginal, conditional, alpha, tokens, alpha**place)
    if ax is None:
        figure = Figure(figsize=(7.2, 4.0), dpi=150, layout="constrained")
        ax = figure.add_subplot()
    for shift, colour, mark, rates, said in (
        (-0.08, BLUE, "o", marginal, "accepted at i / drafts (vLLM's rate)"),
        (0.08, VERMILION, "s", conditional, "accepted at i / accepted at i - 1"),
    ):
        below, above = rates.estimate - rates.low, rates.high - rates.estimate
        ax.errorbar(
            place + shift,
            rates.estimate,
            yerr=None if drafts is None else [below, above],
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
    over = "counters alone: no intervals" if drafts is None else f"{level:.0%} over requests"
    ax.set_ylabel(f"acceptance rate ({over})", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.grid(axis="y", color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    said = f"Acceptance by position, {num_drafts:,} drafts" if title is None else title
    ax.set_title(said, fontsize=11, loc="left")
    ax.legend(frameon=False, fontsize=SMALL, labelcolor=QUIET)
    return data, ax


def shares(
    counts: Float[np.ndarray, "K"],
    reached: Float[np.ndarray, "K"],
    drafts: Drafts | None,
    level: Scalar,
) -> tuple[theory.Interval, theory.Interval]:
    """Return the marginal and conditional shares [K] with their intervals."""
    chance = np.divide(counts, reached, out=np.full_like(counts, np.nan), where=reached > 0)
    if drafts is None:
        nothing = np.full_like(counts, np.nan)
        marginal = theory.Interval(counts / reached[0], nothing, nothing)
        return marginal, theory.Interval(chance, nothing, nothing)
    place = np.arange(counts.size)[:, None]
    passed = drafts.accepted[None] > place  # [K, D]
    there = drafts.accepted[None] >= place
    if drafts.accepted.size != reached[0] or (passed.sum(axis=1) != counts).any():
        raise ValueError(
            f"drafts must be those counted: {reached[0]:.0f} with {counts.tolist()} accepted by "
            f"position, got {drafts.accepted.size} with {passed.sum(axis=1).tolist()}"
        )
    nothing = theory.Interval(np.nan, np.nan, np.nan)
    marginal = [share(hit, np.ones_like(hit), drafts.request, level) for hit in passed]
    conditional = [
        share(hit, seen, drafts.request, level) if seen.any() else nothing
        for hit, seen in zip(passed, there, strict=True)
    ]
    return stack(marginal), stack(conditional)
