"""The speedup against the batch, a line per K: dense models fall, sparse ones first rise."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax import theory
from specjax.theory.arrays import Scalar, Value, require
from specjax.viz.palette import DASHES, GRID, LINES, PALE, QUIET, SMALL

Time = Callable[[Value, Value], Value]  # (B, m) -> seconds of a pass over B rows of m tokens


class BatchPanel(NamedTuple):
    """One target's lines."""

    name: str
    batches: Int[np.ndarray, "S"]
    depths: Int[np.ndarray, "K"]
    speedup: Float[np.ndarray, "K S"]  # over plain decoding of the same batch
    best: Int[np.ndarray, "S"]  # the best of ``depths``; 0 where plain decoding is


def speedup_by_batch(
    targets: Mapping[str, Time],
    alpha: Scalar = 0.7,
    *,
    depths: Sequence[int] = (1, 2, 3, 5, 8),
    most_rows: int = 512,
    title: str | None = None,
    figure: Figure | None = None,
) -> tuple[tuple[BatchPanel, ...], tuple[Axes, ...]]:
    """Draw G t(B, 1) / t(B, K + 1) against B for free drafts, a panel per target.

    ``targets`` name functions that give the seconds of a pass over B rows of m tokens. The broad
    pale line is what choosing K by the batch gives, plain decoding included. Returns the numbers
    and the axes. Raises ValueError for nothing to draw, K < 1 or alpha outside [0, 1].
    """
    require("the number of targets", len(targets), 1)
    require("the number of depths", len(depths), 1)
    require("depths", depths, 1)
    require("most_rows", most_rows, 2)
    batches, K = np.arange(1, most_rows + 1), np.asarray(depths)
    tokens = theory.tokens_per_step(alpha, K)
    if figure is None:
        figure = Figure(figsize=(7.8, 4.0), dpi=150, layout="constrained")
    axes = figure.subplots(1, len(targets), sharex=True, sharey=True, squeeze=False)[0]
    panels = []
    for ax, (name, time) in zip(axes, targets.items(), strict=True):
        gain = tokens[:, None] * theory.target_efficiency(batches[None], K[:, None], time)
        best = np.where(gain.max(axis=0) > 1, K[gain.argmax(axis=0)], 0)
        panels.append(BatchPanel(name, batches, K, gain, best))
        draw(ax, panels[-1])
    axes[0].set_ylabel("speedup over plain decoding (ratio)", fontsize=SMALL)
    axes[0].set_ylim(0, 1.08 * max(panel.speedup.max() for panel in panels))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
        fontsize=SMALL,
        labelcolor=QUIET,
        columnspacing=1.2,
        handlelength=1.8,
    )
    said = f"Free drafts accepted with alpha = {alpha:g}, on a roofline of assumed peaks"
    figure.suptitle(said if title is None else title, fontsize=11, x=0.01, ha="left")
    return tuple(panels), tuple(axes)


def draw(ax: Axes, panel: BatchPanel) -> None:
    """Draw one target's speedups over the batch size, a line per K."""
    most = np.maximum(panel.speedup.max(axis=0), 1.0)
    ax.plot(panel.batches, most, color=PALE, linewidth=7, alpha=0.6, label="best K")
    for i, (k, line) in enumerate(zip(panel.depths, panel.speedup, strict=True)):
        style = {"color": LINES[i % len(LINES)], "linestyle": DASHES[i % len(DASHES)]}
        ax.plot(panel.batches, line, linewidth=1.8, label=f"K = {k}", **style)
    ax.axhline(1.0, color=QUIET, linewidth=0.8)
    ax.set_xscale("log", base=2)
    powers = 2 ** np.arange(0, int(np.log2(panel.batches[-1])) + 1)
    ax.set_xticks(powers, [f"{power}" for power in powers])
    ax.minorticks_off()
    ax.set_xlabel("rows in the batch", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.grid(color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(panel.name, fontsize=SMALL)
