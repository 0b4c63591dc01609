"""Bars of rejection sampling: what is accepted, what is rejected, what is drawn instead."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax import theory
from specjax.theory.arrays import Real
from specjax.viz.palette import BLACK, BLUE, GRID, ORANGE, QUIET, SKY, SMALL, VERMILION


class Bars(NamedTuple):
    """The numbers of the figure, by token."""

    p: Float[np.ndarray, "V"]
    q: Float[np.ndarray, "V"]
    common: Float[np.ndarray, "V"]  # min(p, q): drafted and accepted
    rejected: Float[np.ndarray, "V"]  # max(q - p, 0): drafted too often
    missing: Float[np.ndarray, "V"]  # max(p - q, 0): drafted too seldom
    residual: Float[np.ndarray, "V"]  # missing, normalised: the distribution after a rejection
    alpha: float


def residual_bars(
    p: Real,
    q: Real,
    *,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> tuple[Bars, Axes]:
    """Draw the target's distribution p and the draft's q [V] side by side, split at min(p, q).

    The blue parts are accepted tokens, together alpha; the hatched part of q is rejected, and the
    residual puts exactly its mass where p is missing some, so that what is emitted is distributed
    as p (Leviathan et al. 2023, A.1). Returns the numbers and the axes.
    Raises ValueError for rows that are no distributions, or a wrong number of labels.
    """
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    alpha = float(theory.acceptance_prob(p, q))
    names = [str(i) for i in range(p.size)] if labels is None else list(labels)
    if p.ndim != 1 or p.shape != q.shape or len(names) != p.size:
        raise ValueError(
            f"need p and q of one shape [V] and V labels, got {p.shape}, {q.shape}, {len(names)}"
        )
    common = np.minimum(p, q)
    data = Bars(p, q, common, q - common, p - common, theory.residual(p, q), alpha)
    if ax is None:
        ax = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained").add_subplot()
    place = np.arange(p.size)
    for shift, top, colour, edge, hatch, base, said in (
        (-0.2, data.missing, "white", VERMILION, "\\\\\\", BLUE, "p - q: drafted too seldom"),
        (0.2, data.rejected, "white", ORANGE, "///", SKY, "q - p: drafted too often, rejected"),
    ):
        name = "p, up to q" if shift < 0 else "q, up to p: accepted"
        ax.bar(place + shift, common, 0.36, color=base, label=name)
        ax.bar(
            place + shift,
            top,
            0.36,
            bottom=common,
            color=colour,
            edgecolor=edge,
            hatch=hatch,
            linewidth=1.0,
            label=said,
        )
    ax.plot(
        place[data.residual > 0],
        data.residual[data.residual > 0],
        color=BLACK,
        marker="D",
        markersize=6,
        linestyle="none",
        label="norm(max(p - q, 0)): drawn after a rejection",
    )
    ax.set_xticks(place, names)
    ax.set_xlabel("token; left bar p, target; right bar q, draft", fontsize=SMALL)
    ax.set_ylabel("probability", fontsize=SMALL)
    ax.set_ylim(0, 1.08 * max(p.max(), q.max(), data.residual.max()))
    ax.tick_params(labelsize=SMALL)
    ax.grid(axis="y", color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    said = f"Accepted: sum min(p, q) = {alpha:.3f}; rejected: TV(p, q) = {1 - alpha:.3f}"
    ax.set_title(said if title is None else title, fontsize=11, loc="left")
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.17),
        ncols=2,
        frameon=False,
        fontsize=SMALL,
        labelcolor=QUIET,
    )
    return data, ax
