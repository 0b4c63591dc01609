"""The speedup over alpha and K: where speculation pays, and how many tokens to draft."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax import theory
from specjax.theory.arrays import Scalar, require
from specjax.viz.figure import figure_of
from specjax.viz.palette import BLACK, ORANGE, PALE, QUIET, SMALL


class Surface(NamedTuple):
    """The numbers of the figure."""

    alphas: Float[np.ndarray, "A"]
    ks: Int[np.ndarray, "K"]  # 1 .. k_max
    speedup: Float[np.ndarray, "K A"]  # over plain decoding
    best: Int[np.ndarray, "A"]  # the K of the greatest speedup, 0: none pays
    breakeven: Float[np.ndarray, "K"]  # the alpha of speedup 1; NaN: there is none


def speedup_surface(
    c: Scalar = 0.1,
    *,
    k_max: int = 12,
    v: Scalar = 1.0,
    num_alphas: int = 201,
    title: str | None = None,
    ax: Axes | None = None,
) -> tuple[Surface, Axes]:
    """Draw G / (K c + v) as a map over alpha and K, its ridge K*, and the line of speedup 1.

    Leviathan et al. 2023, Thm 3.8. ``c`` is a draft step over a target step, ``v`` a verified
    block over one token. Left of the break-even line, hatched, plain decoding is faster.
    Returns the numbers and the axes. Raises ValueError for a negative cost or k_max < 2.
    """
    require("k_max", k_max, 2)
    alphas, ks = np.linspace(0.0, 1.0, num_alphas), np.arange(1, k_max + 1)
    gain = theory.speedup(alphas[None], ks[:, None], c, v)
    best = theory.optimal_k(alphas, c, v, k_max)
    surface = Surface(alphas, ks, gain, best, theory.breakeven_alpha(ks, c, v))
    if ax is None:
        figure = Figure(figsize=(7.2, 4.6), dpi=150, layout="constrained")
        ax = figure.add_subplot()
    image = ax.pcolormesh(alphas, ks, gain, cmap="cividis", shading="nearest", rasterized=True)
    figure = figure_of(ax)
    bar = figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_label("speedup over plain decoding (ratio)", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
    levels = [level for level in (1.5, 2, 3, 4, 6, 8) if level < gain.max()]
    if levels:
        lines = ax.contour(alphas, ks, gain, levels=levels, colors="white", linewidths=0.7)
        ax.clabel(lines, fmt="%gx", fontsize=SMALL - 1)
    heights = np.linspace(0.5, k_max + 0.5, 200)
    border = theory.breakeven_alpha(heights, c, v)
    slower = np.where(np.isnan(border), 1.0, border)
    ax.fill_betweenx(heights, slower, facecolor="none", edgecolor=PALE, hatch="////", linewidth=0)
    ax.plot(border, heights, color="white", linewidth=3.2)
    ax.plot(border, heights, color=BLACK, linewidth=1.6, label="break-even: slower on its left")
    pays = best > 0
    ax.step(alphas[pays], best[pays], where="mid", color=BLACK, linewidth=4.0)
    ax.step(
        alphas[pays],
        best[pays],
        where="mid",
        color=ORANGE,
        linewidth=2.2,
        label=f"best K, up to {k_max}",
    )
    ax.set(xlim=(0, 1), ylim=(0.5, k_max + 0.5))
    ax.set_yticks(ks[:: max(1, k_max // 8)])
    ax.set_xlabel("alpha, chance that a draft token is accepted", fontsize=SMALL)
    ax.set_ylabel("K, tokens drafted per step", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    said = f"Speedup at c = {c:g} (a draft step over a target step)" if title is None else title
    ax.set_title(said, fontsize=11, loc="left", pad=26)
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=3,
        frameon=False,
        fontsize=SMALL,
        labelcolor=QUIET,
    )
    return surface, ax
