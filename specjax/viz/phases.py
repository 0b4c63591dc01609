"""Tokens per second of several services, phase by phase of a load that changes."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.theory.arrays import require
from specjax.viz.palette import DASHES, GRID, LINES, MARKS, QUIET, SMALL


def phases(
    clients: Sequence[int],
    rates: Mapping[str, Sequence[float]],
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> tuple[Float[np.ndarray, "A P"], Axes]:
    """Draw a line per service over the phases, each named by its number of clients.

    ``rates``: tokens per second of every phase, by service. Returns them [services, phases] and
    the axes. Raises ValueError for no service, or another number of rates than of phases.
    """
    require("the number of services", len(rates), 1)
    data = np.array(list(rates.values()), np.float64)
    if data.shape[1:] != (len(clients),):
        raise ValueError(f"need a rate per phase, {len(clients)}, got {data.shape[1:]}")
    if ax is None:
        figure = Figure(figsize=(6.4, 3.6), dpi=150, layout="constrained")
        ax = figure.add_subplot()
    place = np.arange(len(clients))
    for name, own, colour, mark, dash in zip(rates, data, LINES, MARKS, DASHES, strict=False):
        ax.plot(place, own, color=colour, marker=mark, linestyle=dash, linewidth=1.6, label=name)
    ax.set_xticks(place, [str(one) for one in clients])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("clients, phase after phase", fontsize=SMALL)
    ax.set_ylabel("tokens per second", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL)
    ax.grid(color=GRID, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(
        "Throughput under a changing load" if title is None else title, fontsize=11, loc="left"
    )
    ax.legend(frameon=False, fontsize=SMALL, labelcolor=QUIET)
    return data, ax
