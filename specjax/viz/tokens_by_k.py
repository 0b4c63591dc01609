"""Tokens per round against K: measured in a log, and predicted by models fitted to it."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.traces.events import Trace
from specjax.traces.fits import Curves
from specjax.traces.fits import tokens_by_k as ask
from specjax.viz.palette import BLACK, DASHES, GRID, LINES, QUIET, SMALL

MODELS = (
    ("one_alpha", "one alpha"),
    ("beta", "an alpha per draft (Beta)"),
    ("mixture", "an alpha per request (two kinds)"),
    ("markov", "memory of the token before (Markov)"),
)


def tokens_by_k(
    trace: Trace,
    ks: Sequence[int] = tuple(range(13)),
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> tuple[Curves, Axes]:
    """Draw the log's drafts cut at K as points, and four fitted models as lines.

    Beyond the log's K the spread of the lines is how little is known. Returns the curves and the
    axes. Raises ValueError for a log without drafts or a negative K.
    """
    curves = ask(trace, ks)
    if ax is None:
        ax = Figure(figsize=(7.2, 4.0), dpi=150, layout="constrained").add_subplot()
    for (name, said), colour, dashes in zip(MODELS, LINES, DASHES, strict=False):
        tokens = getattr(curves, name)
        ax.plot(curves.ks, tokens, color=colour, linestyle=dashes, linewidth=1.8, label=said)
    known = np.isfinite(curves.truncated)
    ax.plot(
        np.array(curves.ks)[known],
        np.array(curves.truncated)[known],
        color=BLACK,
        marker="o",
        markersize=6,
        linestyle="none",
        label="the log's drafts, cut at K",
    )
    ax.axvline(trace.depth, color=QUIET, linewidth=0.8, linestyle=(0, (2, 2)))
    ax.set_xlabel(f"K, tokens drafted per round; the log's is {trace.depth}", fontsize=SMALL)
    ax.set_ylabel("tokens per round, the target's own included", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.grid(color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    said = "Tokens per round at another K" if title is None else title
    ax.set_title(said, fontsize=11, loc="left")
    ax.legend(frameon=False, fontsize=SMALL, labelcolor=QUIET)
    return curves, ax
