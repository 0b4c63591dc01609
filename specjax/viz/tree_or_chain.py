"""Tokens per round at equal verified tokens: the best tree of n tokens against the chain."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specjax import theory
from specjax.theory.arrays import Real
from specjax.viz.palette import GRID, LINES, QUIET, SMALL


class Growth(NamedTuple):
    """One drafter's tokens per round, by the number of verified tokens."""

    name: str
    sizes: Int[np.ndarray, "S"]  # verified tokens, the root included
    chain: Float[np.ndarray, "S"]  # tokens per round
    tree: Float[np.ndarray, "S"]
    chain_up_to: int  # the largest size up to which the best tree is the chain


def tree_or_chain(
    drafters: Mapping[str, Real],
    sizes: Sequence[int] = tuple(range(1, 33)),
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> tuple[tuple[Growth, ...], Axes]:
    """Draw E[tokens per round] of chain (dashed) and best tree (solid) against their size.

    ``drafters`` maps a name to the chances that the child of rank 0, 1, ... is the accepted one:
    [k], or [levels, k]. A dot marks the last size at which the chain is the best tree.
    Returns the curves and the axes. Raises ValueError as ``theory.tree_optimal`` does, or for no
    drafter or size.
    """
    if not drafters or not sizes:
        raise ValueError(f"need a drafter and a size, got {list(drafters)} and {list(sizes)}")
    growths = tuple(measure(name, rates, sizes) for name, rates in drafters.items())
    if ax is None:
        ax = Figure(figsize=(7.2, 4.0), dpi=150, layout="constrained").add_subplot()
    for growth, colour in zip(growths, LINES, strict=False):
        ax.plot(growth.sizes, growth.tree, color=colour, linewidth=2.0, label=growth.name)
        ax.plot(growth.sizes, growth.chain, color=colour, linewidth=1.4, linestyle="--")
        last = np.flatnonzero(growth.sizes <= growth.chain_up_to)
        if last.size:
            ax.plot(growth.sizes[last[-1]], growth.tree[last[-1]], "o", color=colour, markersize=6)
    ax.set_xlabel("verified tokens per round, the root included", fontsize=SMALL)
    ax.set_ylabel("tokens per round, the target's own included", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.grid(color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    said = "Best tree (solid) and chain (dashed); up to the dot they are the same"
    ax.set_title(said if title is None else title, fontsize=11, loc="left")
    shapes = [
        Line2D([], [], color=QUIET, label="best tree"),
        Line2D([], [], color=QUIET, linestyle="--", label="chain"),
        Line2D([], [], color=QUIET, linestyle="", marker="o", label="up to here they are the same"),
    ]
    handles = [*ax.get_legend_handles_labels()[0], *shapes]
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 2}
    ax.legend(handles=handles, frameon=False, fontsize=SMALL, labelcolor=QUIET, **below)
    return growths, ax


def measure(name: str, rates: Real, sizes: Sequence[int]) -> Growth:
    """Return one drafter's curves."""
    wide = np.atleast_2d(np.asarray(rates, np.float64))
    trees = [theory.tree_optimal(wide, n) for n in sizes]
    chains = [theory.tree_optimal(wide[:, :1], n).tokens for n in sizes]
    same = [abs(tree.tokens - chain) < 1e-12 for tree, chain in zip(trees, chains, strict=True)]
    wins = [n for i, n in enumerate(sizes) if all(same[: i + 1])]
    return Growth(
        name,
        np.array(sizes),
        np.array(chains),
        np.array([tree.tokens for tree in trees]),
        max(wins, default=0),
    )
