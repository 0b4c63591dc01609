"""TPOT over the load for several K, with the objective and the bounds of what is assumed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.theory.arrays import Scalar
from specjax.theory.modelled import ModelledServer
from specjax.theory.plan import Load, steady
from specjax.viz.palette import DASHES, GRID, LINES, QUIET, SMALL


class Line(NamedTuple):
    """TPOT [s] at each load for one K; NaN where some world is overloaded."""

    k: int
    rps: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def plan_picture(
    server: ModelledServer,
    load: Load,
    alpha: Scalar,
    slo: Scalar,
    ks: Sequence[int] = (0, 1, 3, 5),
    *,
    ax: Axes | None = None,
) -> tuple[tuple[Line, ...], Axes]:
    """Draw TPOT over requests per second, a band per K, and the objective.

    The loads are a tenth to eight times ``load.rps``. A band ends where the server is overloaded in
    some world. Returns the lines and the axes. Raises ValueError as ``steady`` does.
    """
    rates = np.geomspace(0.1, 8.0, 40) * load.rps
    states = [steady(server, load._replace(rps=float(one)), alpha, ks) for one in rates]
    if ax is None:
        figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
        ax = figure.add_subplot()
    lines = []
    for i, k in enumerate(ks):
        both = [(one[i].tpot.low, one[i].tpot.high) for one in states]
        low, high = (tuple(float(x) for x in column) for column in zip(*both, strict=True))
        lines.append(Line(k, tuple(float(x) for x in rates), low, high))
        ends = np.isfinite(high)
        ms = 1e3 * np.array([low, high])[:, ends]
        colour, dashes = LINES[i % len(LINES)], DASHES[i % len(DASHES)]
        ax.fill_between(rates[ends], *ms, color=colour, alpha=0.15, linewidth=0)
        name = "plain decoding" if k == 0 else f"K = {k}"
        ax.plot(rates[ends], np.sqrt(ms[0] * ms[1]), color=colour, ls=dashes, label=name)
    ax.axhline(1e3 * slo, color=QUIET, linestyle=":", linewidth=1.5)
    ax.annotate(
        f"objective: {1e3 * slo:g} ms",
        (rates[0], 1e3 * slo),
        xytext=(2, 3),
        textcoords="offset points",
        fontsize=SMALL,
        color=QUIET,
    )
    ax.set(xscale="log", xlabel="requests per second", ylabel="TPOT (ms)", ylim=(0, None))
    ax.set_title(f"{server.num_devices} x {server.hardware.name}, {server.target.name}")
    ax.grid(color=GRID, linewidth=0.6)
    ax.legend(frameon=False, fontsize=SMALL)
    return tuple(lines), ax
