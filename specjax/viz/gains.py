"""Measured gains with their intervals, beside the theory's predictions."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.theory.arrays import require
from specjax.theory.intervals import Interval
from specjax.viz.palette import BLUE, GRID, LINES, MARKS, QUIET, SMALL, VERMILION


class Gain(NamedTuple):
    """One comparison's ratios, above 1 if the arm is faster."""

    where: str  # dataset and load; "" if the title says it
    arm: str
    tpot: Interval
    tps: Interval


def gains(
    shown: Sequence[Gain], *, title: str | None = None, ax: Axes | None = None
) -> tuple[Float[np.ndarray, "G 2 3"], Axes]:
    """Draw one line per comparison: TPOT gain and TPS gain with their intervals.

    Returns [comparisons, (TPOT, TPS), (estimate, low, high)] and the axes.
    Raises ValueError for no comparison.
    """
    require("the number of comparisons", len(shown), 1)
    data = np.array([[tuple(one.tpot), tuple(one.tps)] for one in shown], np.float64)
    if ax is None:
        height = 1.3 + 0.42 * len(shown)
        figure = Figure(figsize=(7.6, height), dpi=150, layout="constrained")
        ax = figure.add_subplot()
    place = np.arange(len(shown))[::-1].astype(float)
    looks = ((0.12, BLUE, "o", "TPOT"), (-0.12, VERMILION, "s", "throughput (TPS)"))
    for k, (shift, colour, mark, said) in enumerate(looks):
        value, low, high = data[:, k].T
        bars = np.nan_to_num(np.stack([value - low, high - value]))
        ax.errorbar(
            value,
            place + shift,
            xerr=np.maximum(bars, 0.0),
            color=colour,
            marker=mark,
            markersize=5,
            linewidth=1.2,
            linestyle="none",
            capsize=3,
            label=said,
        )
    ax.axvline(1.0, color="black", linewidth=0.8, linestyle=(0, (4, 3)))
    names = [f"{one.where}: {one.arm}" if one.where else one.arm for one in shown]
    ax.set_yticks(place, names)
    ax.set_ylim(-0.6, len(shown) - 0.4)
    ax.set_xlabel("gain over the base (ratio), 95% intervals over prompts", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.grid(axis="x", color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title("Measured gains" if title is None else title, fontsize=11, loc="left")
    ax.legend(frameon=False, fontsize=SMALL, labelcolor=QUIET)
    return data, ax


def predicted_against_measured(
    pairs: Sequence[tuple[str, float, Interval]], *, ax: Axes | None = None
) -> tuple[Float[np.ndarray, "G 2"], Axes]:
    """Draw measured TPOT gains over tokens per round / cost of a round.

    ``pairs``: (arm, predicted, measured). Returns [comparisons, (predicted, measured)] and the
    axes. Raises ValueError for no pair.
    """
    require("the number of pairs", len(pairs), 1)
    data = np.array([(predicted, one.estimate) for _, predicted, one in pairs], np.float64)
    if ax is None:
        figure = Figure(figsize=(5.4, 4.4), dpi=150, layout="constrained")
        ax = figure.add_subplot()
    low, high = 0.92 * min(1.0, data.min()), 1.06 * max(1.0, data.max())
    ax.plot([low, high], [low, high], color="black", linewidth=0.8, linestyle=(0, (4, 3)))
    arms = list(dict.fromkeys(arm for arm, _, _ in pairs))
    for index, arm in enumerate(arms):
        here = [i for i, pair in enumerate(pairs) if pair[0] == arm]
        colour, mark = LINES[index % len(LINES)], MARKS[index % len(MARKS)]
        x, y = data[here].T
        ax.plot(x, y, color=colour, marker=mark, markersize=6, linestyle="none", label=arm)
    ax.set(xlim=(low, high), ylim=(low, high))
    ax.set_xlabel("tokens per round / cost of a round (predicted)", fontsize=SMALL)
    ax.set_ylabel("TPOT gain (measured)", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.grid(color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title("Predicted against measured speedup", fontsize=11, loc="left")
    ax.legend(frameon=False, fontsize=SMALL, labelcolor=QUIET)
    return data, ax
