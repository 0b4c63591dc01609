"""The number of kernel calls of a lowered program, by the fused kernels allowed."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.viz.palette import GREEN

SMALL = "#BBBBBB"


class Lowered(NamedTuple):
    """One bar of the figure."""

    plan: str
    num_kernels: int  # calls of fused kernels, matrix products among them
    num_calls: int  # of everything


def lowered_calls(
    rows: Sequence[Lowered], *, title: str | None = None, ax: Axes | None = None
) -> tuple[tuple[float, ...], Axes]:
    """Draw a bar per plan: fused kernels, then the small operations between them.

    Returns each plan's calls as a multiple of the fewest, and the axes. Raises ValueError when
    there is no row.
    """
    if not rows:
        raise ValueError("need at least one program to draw, got none")
    if ax is None:
        figure = Figure(figsize=(8, 1.3 + 0.45 * len(rows)), dpi=150, layout="constrained")
        ax = figure.add_subplot()
    names = [row.plan for row in rows]
    kernels, calls = [row.num_kernels for row in rows], [row.num_calls for row in rows]
    ax.barh(names, kernels, color=GREEN, height=0.6, label="fused kernels")
    rest = [whole - part for whole, part in zip(calls, kernels, strict=True)]
    ax.barh(names, rest, left=kernels, color=SMALL, height=0.6, label="other operations")
    for y, row in enumerate(rows):
        ax.text(row.num_calls, y, f" {row.num_calls}", va="center", fontsize=9)
    ax.invert_yaxis()
    ax.set_xlim(0, max(calls) * 1.1)
    ax.set_xlabel("calls per forward pass", fontsize=9)
    ax.tick_params(labelsize=9)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    said = "One program, four lowerings"
    ax.set_title(said if title is None else title, fontsize=11, loc="left")
    ax.legend(loc="lower right", frameon=False, fontsize=9)
    return tuple(whole / min(calls) for whole in calls), ax
