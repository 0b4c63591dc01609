"""The gain of speculation against concurrency: a benchmark's points over a model's lines."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.theory.published import SUFFIX_BENCHMARK, BenchmarkRow
from specjax.theory.serving import fit_serving_model, gains, lodo_error, serving_multiplier
from specjax.viz.palette import BLUE, GRID, ORANGE, QUIET, SMALL, VERMILION

LABELS = {"tpot": "plain TPOT / speculative TPOT", "tps": "speculative TPS / plain TPS"}


class Panel(NamedTuple):
    """One dataset's part of the figure."""

    dataset: str
    ratio: float  # accepted / drafted
    concurrency: Int[np.ndarray, "R"]
    measured: Float[np.ndarray, "R"]
    line_concurrency: Float[np.ndarray, "L"]
    line: Float[np.ndarray, "L"]  # the model, fitted without this dataset
    simulated: Float[np.ndarray, "R"] | None


def gain_by_concurrency(
    rows: Sequence[BenchmarkRow] = SUFFIX_BENCHMARK,
    metric: str = "tpot",
    *,
    simulated: Sequence[float] | None = None,
    title: str | None = None,
    figure: Figure | None = None,
) -> tuple[tuple[Panel, ...], tuple[Axes, ...]]:
    """Draw one panel per dataset: measured gains over the model fitted to the other datasets.

    ``metric`` "tpot" or "tps". ``simulated`` [rows]: gains of the serving simulator, such as
    ``[one.tpot_gain for one in simulate.replay(rows)]``. Returns the panels and their axes.
    Raises ValueError for another metric, fewer than two datasets, or a wrong number of gains.
    """
    measured = gains(rows, metric)
    if simulated is not None and len(simulated) != len(rows):
        raise ValueError(f"need a simulated gain per row, {len(rows)}, got {len(simulated)}")
    names = list(dict.fromkeys(row.dataset for row in rows))
    most = max(row.concurrency for row in rows)
    error = lodo_error(rows, metric)
    panels = []
    for name in names:
        here = [i for i, row in enumerate(rows) if row.dataset == name]
        model = fit_serving_model([row for row in rows if row.dataset != name], metric)
        ratio = rows[here[0]].ratio
        line = np.linspace(1, most, 100)
        panels.append(
            Panel(
                name,
                ratio,
                np.array([rows[i].concurrency for i in here]),
                measured[here],
                line,
                serving_multiplier(ratio, line, model.d, model.beta, model.h),
                None if simulated is None else np.array([simulated[i] for i in here]),
            )
        )
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    if figure is None:
        figure = Figure(figsize=(7.8, 0.9 + 2.1 * lines), dpi=150, layout="constrained")
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for ax, panel in zip(grid, panels, strict=False):
        draw(ax, panel)
    for ax in grid[len(panels) :]:
        ax.set_axis_off()
    for ax in grid[-columns:]:
        ax.set_xlabel("concurrent requests", fontsize=SMALL)
    top = max(max(panel.measured.max(), panel.line.max()) for panel in panels)
    grid[0].set_ylim(0.95, 1.03 * top)
    figure.supylabel(f"gain: {LABELS[metric]} (ratio)", fontsize=SMALL)
    said = (
        f"Gain against concurrency; held-out mean error {error.mape:.1%}, worst {error.worst:.1%}"
    )
    figure.suptitle(said if title is None else title, fontsize=11, x=0.01, ha="left")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=SMALL,
        labelcolor=QUIET,
    )
    return tuple(panels), tuple(grid[: len(panels)])


def draw(ax: Axes, panel: Panel) -> None:
    """Draw one dataset."""
    ax.axhline(1.0, color="black", linewidth=0.8, linestyle=(0, (4, 3)))
    ax.plot(
        panel.line_concurrency,
        panel.line,
        color=BLUE,
        linewidth=1.8,
        label="model, fitted to the other datasets",
    )
    if panel.simulated is not None:
        ax.plot(
            panel.concurrency,
            panel.simulated,
            color=ORANGE,
            marker="x",
            markersize=6,
            markeredgewidth=1.8,
            linestyle="none",
            label="simulated",
        )
    ax.plot(
        panel.concurrency,
        panel.measured,
        color=VERMILION,
        marker="o",
        markersize=5,
        linestyle="none",
        label="measured (guide)",
    )
    ax.set_title(f"{panel.dataset}, {panel.ratio:.1%} accepted", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.grid(color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
