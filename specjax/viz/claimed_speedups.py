"""The right speedup beside the wrong ones in circulation, over alpha and over K."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax import theory
from specjax.theory.arrays import Scalar, Value, require, require_costs, require_probs
from specjax.viz.palette import BLACK, BLUE, DASHES, GRID, PURPLE, QUIET, SMALL, VERMILION

Count = Callable[[Value, Value], Value]  # (alpha, K) -> tokens per step
COUNTS: dict[str, tuple[str, str, Count]] = {
    "right": (BLACK, "right: G / (K c + 1)", theory.tokens_per_step),
    "no bonus": (VERMILION, "without the target's own token", theory.accepted_per_step),
    "limit": (PURPLE, "a / (1 - a) for the accepted tokens", lambda a, K: a / (1 - a) + 0 * K),
    "linear": (BLUE, "1 + K a, as if rejections ended nothing", lambda a, K: 1 + K * a),
}


class Claimed(NamedTuple):
    """One formula's speedups."""

    name: str  # a key of ``COUNTS``
    over_alpha: Float[np.ndarray, "A"]  # at K
    over_k: Float[np.ndarray, "K"]  # at alpha, K = 1 .. k_max
    best_k: int  # the K it recommends


def claimed_speedups(
    alpha: Scalar = 0.8,
    K: int = 5,
    c: Scalar = 0.1,
    *,
    k_max: int = 16,
    title: str | None = None,
    figure: Figure | None = None,
) -> tuple[tuple[Claimed, ...], tuple[Axes, ...]]:
    """Draw four formulas for the speedup against alpha (at K) and against K (at alpha).

    All divide by K c + 1 and differ in the tokens per step, see ``COUNTS``. A dot on the right
    marks the K each would recommend. Returns the numbers and the axes.
    Raises ValueError for alpha outside [0, 1), K < 1, k_max < 2 or a negative cost.
    """
    require_probs(alpha=alpha)
    require("1 - alpha", 1 - alpha, 1e-12)
    require("K", K, 1)
    require("k_max", k_max, 2)
    require_costs(c=c)
    alphas, ks = np.linspace(0, 0.99, 199), np.arange(1, k_max + 1)
    if figure is None:
        figure = Figure(figsize=(7.8, 4.2), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    found = []
    for dash, (name, (colour, said, count)) in zip(DASHES, COUNTS.items(), strict=False):
        over_alpha = count(alphas, K) / (K * c + 1)
        over_k = count(alpha, ks) / (ks * c + 1)
        found.append(Claimed(name, over_alpha, over_k, int(ks[over_k.argmax()])))
        style = {"color": colour, "linestyle": dash, "linewidth": 2.4 if name == "right" else 1.8}
        left.plot(alphas, over_alpha, label=said, **style)
        right.plot(ks, over_k, **style)
        right.plot(found[-1].best_k, over_k.max(), marker="o", color=colour, markersize=6)
    top = 1.15 * max(found[0].over_alpha.max(), found[2].over_k.max())
    for ax in (left, right):
        ax.axhline(1.0, color=QUIET, linewidth=0.8)
        ax.set(ylim=(0, top))
        ax.tick_params(labelsize=SMALL)
        ax.grid(color=GRID, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    where = {"ha": "right", "va": "top"}
    right.text(k_max + 0.4, 0.96, "plain decoding", fontsize=SMALL, color=QUIET, **where)
    left.set(xlim=(0, 1))
    left.set_xlabel("alpha, chance that a draft token is accepted", fontsize=SMALL)
    left.set_ylabel("speedup over plain decoding (ratio)", fontsize=SMALL)
    left.set_title(f"K = {K}, c = {c:g}", fontsize=SMALL)
    right.set(xlim=(0.5, k_max + 0.5))
    right.set_xticks(ks[:: max(1, k_max // 8)])
    right.set_xlabel("K, tokens drafted per step; dots: the K recommended", fontsize=SMALL)
    right.set_title(f"alpha = {alpha:g}, c = {c:g}", fontsize=SMALL)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=SMALL,
        labelcolor=QUIET,
    )
    said = "One right formula and three wrong ones" if title is None else title
    figure.suptitle(said, fontsize=11, x=0.01, ha="left")
    return tuple(found), (left, right)
