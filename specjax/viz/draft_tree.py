"""A draft tree with the chance that each of its paths is accepted."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax import theory
from specjax.theory.arrays import Real
from specjax.viz.palette import QUIET, SMALL


class Node(NamedTuple):
    """One node of the figure; node 0 is the root, the last committed token."""

    parent: int
    depth: int
    height: float  # where it is drawn
    reached: float  # product of the chances on its path


def draft_tree(
    parents: Real,
    node_prob: Real,
    *,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> tuple[tuple[Node, ...], Axes]:
    """Draw a tree of N nodes, each with the product of ``node_prob`` along its path.

    ``parents`` [N], ``node_prob`` [N] as in ``theory.tree_tokens``, whose sum the title gives: the
    products of all nodes add up to the tokens per step. ``labels`` [N] are the tokens.
    Returns the nodes and the axes. Raises ValueError as ``tree_tokens`` does, or for a wrong
    number of labels.
    """
    tokens = float(theory.tree_tokens(parents, node_prob))
    nodes = lay_out(np.asarray(parents).tolist(), np.asarray(node_prob, np.float64).tolist())
    if labels is not None and len(labels) != len(nodes):
        raise ValueError(f"need a label per node, {len(nodes)}, got {len(labels)}")
    depth, leaves = max(n.depth for n in nodes), max(n.height for n in nodes) + 1
    if ax is None:
        size = (min(7.8, 2.2 + 1.35 * depth), min(8.0, 1.5 + 0.42 * leaves))
        ax = Figure(figsize=size, dpi=150, layout="constrained").add_subplot()
    shades = colormaps["cividis"]
    for node in nodes[1:]:
        above = nodes[node.parent]
        ax.plot(
            [above.depth, node.depth],
            [above.height, node.height],
            color="#999999",
            linewidth=0.6 + 3.0 * node.reached,
            zorder=1,
        )
    for i, node in enumerate(nodes):
        said = f"{node.reached:.2f}" if node.reached >= 0.005 else "0"
        if labels is not None:
            said = f"{labels[i]} {said}"
        ax.text(
            node.depth,
            node.height,
            said,
            ha="center",
            va="center",
            fontsize=SMALL,
            color="white" if node.reached < 0.55 else "black",
            bbox={
                "boxstyle": "round,pad=0.25",
                "facecolor": shades(node.reached),
                "edgecolor": "white",
            },
            zorder=2,
        )
    ax.set(xlim=(-0.45, depth + 0.45), ylim=(leaves - 0.4, -0.6))
    ax.set_xticks(range(depth + 1), ["root", *(str(i) for i in range(1, depth + 1))])
    ax.set_yticks([])
    said = "depth in draft tokens; a number is the chance that its path is accepted"
    ax.set_xlabel(said, fontsize=SMALL)
    ax.tick_params(labelsize=SMALL, labelcolor=QUIET)
    ax.spines[["top", "right", "left"]].set_visible(False)
    said = f"{len(nodes)} nodes, {tokens:.2f} tokens per step: the sum of all chances"
    ax.set_title(said if title is None else title, fontsize=11, loc="left")
    return nodes, ax


def lay_out(parents: Sequence[int], node_prob: Sequence[float]) -> tuple[Node, ...]:
    """Return heights: leaves in sequence, every other node in the middle of its children."""
    size = len(parents)
    children: list[list[int]] = [[] for _ in range(size)]
    depth, reached = [0] * size, [1.0] * size
    for node in range(1, size):
        above = parents[node]
        children[above].append(node)
        depth[node], reached[node] = depth[above] + 1, reached[above] * node_prob[node]
    height, leaves, waiting = [0.0] * size, 0, [0]
    while waiting:  # depth first, so that branches do not cross
        node = waiting.pop()
        if not children[node]:
            height[node], leaves = float(leaves), leaves + 1
        waiting += reversed(children[node])
    for node in reversed(range(size)):
        if children[node]:
            below = [height[child] for child in children[node]]
            height[node] = (min(below) + max(below)) / 2
    return tuple(Node(parents[i], depth[i], height[i], reached[i]) for i in range(size))
