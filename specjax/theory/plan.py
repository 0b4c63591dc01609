"""Which K at which load, what gain, how many devices: closed forms on a bounded roofline.

Requests arrive at a rate (Poisson; only the mean matters here) and each decodes ``output`` tokens,
so by Little's law the batch is rate x output x TPOT(batch), and TPOT(batch) is a round over its
tokens, stretched by the share of time that prefills take. The fixed point is the steady state.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specjax.theory.arrays import Scalar, require, require_costs
from specjax.theory.intervals import Interval
from specjax.theory.lengths import tokens_per_step
from specjax.theory.modelled import ModelledServer, spread
from specjax.theory.roofline import Hardware


class Load(NamedTuple):
    """Requests per second, and their tokens."""

    rps: Scalar
    prompt: Scalar  # tokens
    output: Scalar  # tokens


class Steady(NamedTuple):
    """The steady state of a server at a K; NaN where the load exceeds what it can serve."""

    num_devices: int
    k: int
    batch: Interval  # rows
    tpot: Interval  # s
    gain: Interval  # over K = 0 at the same load, world by world; infinite if that cannot serve it
    limit: int  # rows that fit into memory; 0: the weights do not


def steady(
    server: ModelledServer, load: Load, alpha: Scalar, ks: Sequence[int]
) -> tuple[Steady, ...]:
    """Return the steady state for each K, with its bounds over the roofline's worlds.

    Args:
        server: devices and models; its context is set to the load's, prompt + output / 2.
        load: requests per second and tokens.
        alpha: chance that a draft token is accepted.
        ks: numbers of drafted tokens.

    Raises:
        ValueError: a rate or a length is negative, or alpha is no probability.
    """
    require_costs(rps=load.rps, prompt=load.prompt)
    require("output", load.output, 1)
    server = server._replace(context=load.prompt + load.output / 2)
    limit = server.most_rows()
    tokens = [float(tokens_per_step(alpha, k)) for k in ks]
    bare = server._replace(draft=None)
    most = bare.most_rows()
    plain = [solve(bare, load, 0, 1.0, world, most) for world in server.worlds()]
    found = []
    for k, made in zip(ks, tokens, strict=True):
        worlds = server.worlds()
        own = [solve(server, load, k, made, world, limit) for world in worlds] if k else plain
        gains = [gain(base, mine) for (_, base), (_, mine) in zip(plain, own, strict=True)]
        batches, tpots = zip(*own, strict=True)
        fits = limit if k else most
        found.append(
            Steady(server.num_devices, k, bounds(batches), bounds(tpots), bounds(gains), fits)
        )
    return tuple(found)


def bounds(values: Sequence[float]) -> Interval:
    """Return the spread of the worlds; without a middle and an end if some have no steady state."""
    known = [one for one in values if one == one]
    if len(known) < len(values):
        return Interval(float("nan"), min(known, default=float("nan")), float("nan"))
    return spread(values)


def gain(base: Scalar, mine: Scalar) -> float:
    """Return base / mine; infinite where only mine is served, NaN where mine is not."""
    return float("inf") if base != base and mine == mine else base / mine


def solve(
    server: ModelledServer,
    load: Load,
    k: int,
    tokens: Scalar,
    world: tuple[Hardware, Hardware],
    limit: int,
) -> tuple[float, float]:
    """Return the batch and TPOT [s] of the steady state in one world; NaN if there is none.

    The smallest batch at which the server emits tokens as fast as they are asked for: a smaller
    one grows, so the server settles there.
    """
    if limit < 1:
        return float("nan"), float("nan")
    prefill = load.rps * load.prompt * 2.0 * server.target.active_params / world[0].flops
    rows = np.arange(1, limit + 1)
    tpot = server.rounds(rows[:, None], [k], *world)[:, 0] / tokens
    if prefill >= 1:
        return float("nan"), float("nan")
    tpot = tpot / (1.0 - prefill)
    asked = load.rps * load.output
    enough = np.flatnonzero(rows / tpot >= asked)
    if not len(enough):
        return float("nan"), float("nan")
    first = int(enough[0])
    if first == 0:  # fewer than one at a time, on average
        return float(asked * tpot[0]), float(tpot[0])
    return float(rows[first]), float(tpot[first])


def devices_needed(
    server: ModelledServer,
    load: Load,
    alpha: Scalar,
    ks: Sequence[int],
    slo: Scalar,
    numbers: Sequence[int] = (1, 2, 4, 8, 16),
) -> tuple[Steady, ...]:
    """Return, for each number of devices, the K whose greatest TPOT over all worlds is least.

    The numbers end with the first that meets the objective ``slo`` [s] in every world. Raises
    ValueError as ``steady`` does.
    """
    require("slo", slo, 1e-9)
    best = []
    for number in numbers:
        states = steady(server._replace(num_devices=number), load, alpha, ks)
        best.append(safest(states))
        if best[-1].tpot.high <= slo:
            break
    return tuple(best)


def safest(states: Sequence[Steady]) -> Steady:
    """Return the first state whose TPOT's upper bound is least; an unknown bound is infinite."""
    worst = [float(one.tpot.high) for one in states]
    return states[int(np.argmin(np.where(np.isnan(worst), np.inf, worst)))]
