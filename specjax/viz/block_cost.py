"""The cost of verifying a block: the time of n tokens per row over the time of one."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax import theory
from specjax.theory.arrays import Real, Scalar, require, require_costs
from specjax.viz.palette import DASHES, GRID, LINES, QUIET, SMALL


class BlockCost(NamedTuple):
    """One line: a batch size on one hardware."""

    hardware: str
    batch: int
    tokens: Float[np.ndarray, "n"]  # per row and pass
    cost: Float[np.ndarray, "n"]  # t(B, n) / t(B, 1)
    knee: float  # tokens per row at which compute takes as long as reading memory
    num_devices: int  # that hold the weights and the rows' caches; the ratio is the same on one


def block_cost(
    model: theory.ModelCost = theory.QWEN3_32B,
    hardware: Sequence[theory.Hardware] = (theory.H200, theory.ASCEND_910B),
    *,
    batches: Sequence[int] = (1, 16, 64, 256),
    ctx: Scalar = 0.0,
    most_tokens: int = 512,
    title: str | None = None,
    figure: Figure | None = None,
) -> tuple[tuple[BlockCost, ...], tuple[Axes, ...]]:
    """Draw t(B, n) / t(B, 1) against n on a roofline: a panel per hardware, a line per batch.

    Flat is free: n tokens for the price of one. A dot marks the knee. The dotted diagonal is the
    price of n plain passes, which no line exceeds. ``ctx`` tokens of context per row.
    Returns the lines and the axes. Raises ValueError for nothing to draw or negative numbers.
    """
    require("the number of hardware", len(hardware), 1)
    require("the number of batches", len(batches), 1)
    require("batches", batches, 1)
    require("most_tokens", most_tokens, 2)
    tokens = np.geomspace(1, most_tokens, 200)
    if figure is None:
        figure = Figure(figsize=(7.8, 4.7), dpi=150, layout="constrained")
    axes = figure.subplots(1, len(hardware), sharex=True, sharey=True, squeeze=False)[0]
    lines = []
    for ax, hw in zip(axes, hardware, strict=True):
        plain = {"color": QUIET, "linestyle": (0, (1, 2)), "linewidth": 1.2}
        ax.plot(tokens, tokens, label="n plain passes", **plain)
        for i, batch in enumerate(batches):
            at = knee_of_row(batch, ctx, model, hw)
            cost = relative(batch, tokens, ctx, model, hw)
            num_devices = int(theory.devices_needed(batch, ctx, model, hw))
            one = BlockCost(hw.name, batch, tokens, cost, at, num_devices)
            lines.append(one)
            style = {"color": LINES[i % len(LINES)], "linestyle": DASHES[i % len(DASHES)]}
            ax.plot(tokens, one.cost, linewidth=2, label=describe(one), **style)
            if 1 <= at <= most_tokens:
                ax.plot([at], [1.0], marker="o", markersize=6, color=style["color"])
        finish(ax, hw, most_tokens)
    axes[0].set_ylabel("time of the pass over that of n = 1 (ratio)", fontsize=SMALL)
    for ax in axes:
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 2}
        ax.legend(frameon=False, fontsize=SMALL, labelcolor=QUIET, **below)
    context = f", {ctx:,.0f} tokens of context" if ctx else ""
    said = f"{model.name}{context}: verifying is free up to the knee; peak numbers are assumed"
    figure.suptitle(said if title is None else title, fontsize=11, x=0.01, ha="left")
    return tuple(lines), tuple(axes)


def relative(
    batch: Scalar, tokens: Real, ctx: Scalar, model: theory.ModelCost, hw: theory.Hardware
) -> Real:
    """Return t(B, n) / t(B, 1) for n = tokens."""
    block = theory.decode_time_roofline(batch, tokens, ctx, model, hw)
    return block / theory.decode_time_roofline(batch, 1, ctx, model, hw)


def knee_of_row(batch: Scalar, ctx: Scalar, model: theory.ModelCost, hw: theory.Hardware) -> float:
    """Return the n at which B n (2 N + ctx a) / F equals (weights + B ctx kv) / BW.

    a: attention's operations per token and token of context, as in ``decode_time_roofline``.
    """
    require_costs(ctx=ctx)
    moved = model.num_params * model.bytes_per_param + batch * ctx * model.kv_bytes
    operations = batch * (2.0 * model.num_params + ctx * model.context_flops)
    return float(moved / hw.bandwidth * hw.flops / operations)


def describe(line: BlockCost) -> str:
    """Return a line's label: its rows, and the devices that hold them if one does not."""
    rows = "1 row" if line.batch == 1 else f"{line.batch} rows"
    return rows if line.num_devices == 1 else f"{rows}, on {line.num_devices} devices"


def finish(ax: Axes, hw: theory.Hardware, most_tokens: int) -> None:
    """Scale and label one panel."""
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    powers = 2 ** np.arange(0, int(np.log2(most_tokens)) + 1)
    ax.set_xticks(powers, [f"{power}" for power in powers])
    ax.set_yticks(powers[:6], [f"{power}" for power in powers[:6]])
    ax.minorticks_off()
    ax.set(xlim=(1, most_tokens), ylim=(0.85, 2.0 ** min(5, len(powers) - 1)))
    ax.set_xlabel("n, tokens verified per row", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.grid(color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(
        f"{hw.name}: {hw.bandwidth / 1e12:g} TB/s, {hw.flops / 1e12:g} TFLOP/s", fontsize=SMALL
    )
