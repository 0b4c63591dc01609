"""The roofline of decoding: what verifying n tokens costs, before and after the knee."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax import theory
from specjax.theory.arrays import Scalar
from specjax.theory.roofline import knee
from specjax.viz.palette import DASHES, GRID, LINES, QUIET, SMALL


class Roof(NamedTuple):
    """One hardware's line."""

    name: str
    tokens: Int[np.ndarray, "n"]  # verified per pass, all rows together
    milliseconds: Float[np.ndarray, "n"]
    knee: float  # tokens at which compute takes as long as reading the weights


def roofline(
    model: theory.ModelCost = theory.QWEN3_32B,
    hardware: Sequence[theory.Hardware] = (theory.H200, theory.ASCEND_910B),
    *,
    ctx: Scalar = 0.0,
    most_tokens: int = 2048,
    title: str | None = None,
    ax: Axes | None = None,
) -> tuple[tuple[Roof, ...], Axes]:
    """Draw the time of a forward pass against the tokens in it, one line per hardware.

    max(bytes / bandwidth, operations / compute): flat while the weights are being read, where
    verifying K more tokens is free, rising from the knee on. ``ctx`` tokens of context are read
    once per pass. Peak numbers of the presets are assumptions, which the figure states.
    Returns the lines and the axes. Raises ValueError for no hardware or negative numbers.
    """
    if not hardware:
        raise ValueError("need at least one hardware to draw, got none")
    tokens = np.unique(np.geomspace(1, most_tokens, 200).round().astype(int))
    roofs = tuple(
        Roof(
            hw.name,
            tokens,
            1e3 * theory.decode_time_roofline(1, tokens, ctx, model, hw),
            knee(model, hw),
        )
        for hw in hardware
    )
    if ax is None:
        figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
        ax = figure.add_subplot()
    for i, (hw, roof) in enumerate(zip(hardware, roofs, strict=True)):
        colour = LINES[i % len(LINES)]
        ax.plot(
            tokens,
            roof.milliseconds,
            color=colour,
            linestyle=DASHES[i % len(DASHES)],
            linewidth=2,
            label=describe(hw),
        )
        if roof.knee <= most_tokens:
            at = 1e3 * float(theory.decode_time_roofline(1, roof.knee, ctx, model, hw))
            ax.plot([roof.knee], [at], marker="o", color=colour, markersize=6)
            ax.annotate(
                f"knee: {roof.knee:.0f} tokens",
                (roof.knee, at),
                xytext=(-6, 8),
                textcoords="offset points",
                ha="right",
                fontsize=SMALL,
                color=colour,
            )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    low = min(roof.milliseconds[0] for roof in roofs)
    high = max(roof.milliseconds[-1] for roof in roofs)
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if low / 2 <= t <= high * 1.3]
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    powers = 2 ** np.arange(0, int(np.log2(most_tokens)) + 1)
    ax.set_xticks(powers, [f"{p}" for p in powers])
    ax.set_xlabel(
        "tokens per forward pass (rows x (K + 1)); peak numbers are assumed", fontsize=SMALL
    )
    ax.set_ylabel("time of a pass (ms)", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.grid(color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    said = (
        f"Roofline of {model.name}: below the knee, more tokens are free"
        if title is None
        else title
    )
    ax.set_title(said, fontsize=11, loc="left")
    ax.legend(frameon=False, fontsize=SMALL, labelcolor=QUIET)
    return roofs, ax


def describe(hw: theory.Hardware) -> str:
    """Return a hardware's label: its name and peak numbers."""
    return f"{hw.name}: {hw.bandwidth / 1e12:g} TB/s, {hw.flops / 1e12:g} TFLOP/s"
