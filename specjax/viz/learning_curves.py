"""How often held-out drafts are accepted while heads are trained."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.theory.arrays import require
from specjax.viz.palette import DASHES, GRID, LINES, MARKS, QUIET, SMALL

Curve = tuple[Sequence[int], Float[np.ndarray, "S K"]]  # steps; acceptance by position there


def learning_curves(
    curves: Mapping[str, Curve],
    positions: Sequence[int] | None = None,
    *,
    title: str | None = None,
    figure: Figure | None = None,
) -> tuple[dict[str, np.ndarray], tuple[Axes, ...]]:
    """Draw a panel per drafted position, with a line per head: acceptance against steps.

    ``curves``: by head, the steps at which it was measured, and the chance of acceptance at each
    drafted position then. ``positions``: by default the first, and the last that all heads draft.
    Returns the lines, [steps, panels] by head, and the axes.
    Raises ValueError for no head, or for a position that a head does not draft.
    """
    require("the number of heads", len(curves), 1)
    if positions is None:
        last = min(np.shape(measured)[-1] for _, measured in curves.values())
        positions = (1, last) if last > 1 else (1,)
    for name, (_, measured) in curves.items():
        if not 1 <= min(positions) <= max(positions) <= np.shape(measured)[-1]:
            raise ValueError(f"{name} drafts {np.shape(measured)[-1]} tokens, not {positions}")
    if figure is None:
        figure = Figure(figsize=(7.8, 3.8), dpi=150, layout="constrained")
    axes = tuple(figure.subplots(1, len(positions), sharey=True, squeeze=False).ravel())
    lines = {
        name: np.asarray(measured)[:, [one - 1 for one in positions]]
        for name, (_, measured) in curves.items()
    }
    for panel, (ax, position) in enumerate(zip(axes, positions, strict=True)):
        for i, (name, (steps, _)) in enumerate(curves.items()):
            again, number = divmod(i, len(LINES))  # a colour that is used again has another mark
            colour, mark = LINES[number], MARKS[(number + again) % len(MARKS)]
            ax.plot(
                steps,
                lines[name][:, panel],
                color=colour,
                marker=mark,
                markersize=4,
                markevery=max(1, len(steps) // 12),
                linestyle=DASHES[again % len(DASHES)],
                linewidth=1.4,
                label=name,
            )
        ax.set_title(f"draft token {position}", fontsize=SMALL)
        ax.set_xlabel("steps of training", fontsize=SMALL)
        ax.tick_params(labelsize=SMALL)
        ax.grid(color=GRID, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(0, 1)
    axes[0].set_ylabel("chance of acceptance, held-out text", fontsize=SMALL)
    said = "Heads trained alike" if title is None else title
    figure.suptitle(said, fontsize=11, x=0.01, ha="left")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside right center", frameon=False, fontsize=SMALL,
        labelcolor=QUIET,
    )  # fmt: skip
    return lines, axes
