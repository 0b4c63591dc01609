"""Goodput: requests per second within objectives, under closed loops and random arrivals.

Arrivals are the same for both servers. Capacity is the most requests per second that the peer
completes in the closed loops; at 100% of it a queue grows, and who has more of it left answers
sooner. One turn of each server follows the other, so that a slow minute of the machine is shared.
"""

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import count, cycle, islice

import numpy as np

from specjax.bench.client import Bodies, Load, load_at_rate
from specjax.bench.plan import PAUSE
from specjax.bench.report import Row, compare
from specjax.measure.objectives import meets
from specjax.measure.turns import take_turns

SLO = {"ttft": 0.2, "tpot": 0.02}  # limits [s]
SHARES = (0.5, 0.8, 1.0)  # of the capacity
NUM_ARRIVALS = 400  # requests in a turn: ten seconds at 40 a second
Loads = Mapping[str, Sequence[Load]]  # by server; a load for every turn


def capacity(loads: Mapping[int, Loads]) -> float:
    """Return the most requests per second in closed loops: the peer's, or our own without one."""
    server = "vLLM" if all("vLLM" in found for found in loads.values()) else "specjax"
    return max(statistics.median(one.rate for one in found[server]) for found in loads.values())


def arrival_loads(
    servers: Mapping[str, str],
    bodies: Bodies,
    rate: float,
    reps: int,
    echo: Callable[[str], None],
    *,
    num_requests: int = NUM_ARRIVALS,
) -> dict[str, list[Load]]:
    """Return each server's loads with Poisson arrivals of ``rate`` requests per second.

    Every repetition has arrivals of its own, the same for all servers.
    """
    asked, seeds = list(islice(cycle(bodies), num_requests)), {name: count() for name in servers}

    def timed(name: str) -> Load:
        done = load_at_rate(servers[name], asked, rate, next(seeds[name]))
        first = np.percentile([one.first for one in done.completions], 99)
        echo(f"{rate:.1f} requests/s arrive, {name}: p99 of the first token {1e3 * first:.0f} ms")
        return done

    calls = [functools.partial(timed, name) for name in servers]
    loads = take_turns(calls, reps, pause=PAUSE)
    return dict(zip(servers, loads, strict=True))


def goodput_rows(what: str, loads: Loads, slo: Mapping[str, float]) -> list[Row]:
    """Return rows of our goodput, and of the share of requests within ``slo``, beside a peer's."""
    good = {name: [within(one, slo) for one in found] for name, found in loads.items()}
    rates = {
        name: statistics.median(
            number / one.seconds for number, one in zip(good[name], found, strict=True)
        )
        for name, found in loads.items()
    }
    shares = {
        name: sum(good[name]) / sum(len(one.completions) for one in found)
        for name, found in loads.items()
    }
    limits = ", ".join(f"{name} <= {1e3 * most:g} ms" for name, most in slo.items())
    return [
        beside(f"goodput, {what} ({limits})", rates, "requests/s"),
        beside(f"requests within the objectives, {what}", shares, "of all"),
    ]


def within(done: Load, slo: Mapping[str, float]) -> int:
    """Return the number of a load's requests that met every objective."""
    return sum(meets(one.times, slo) for one in done.completions)


def beside(name: str, values: Mapping[str, float], unit: str) -> Row:
    """Return the row of our value beside vLLM's; without a ratio if that is 0 or absent."""
    peer = values.get("vLLM")
    if peer:
        return compare(name, values["specjax"], unit, peer, "vLLM")
    against = None if peer is None else "vLLM"
    return Row(name=name, value=values["specjax"], unit=unit, peer=peer, against=against)


def tail_rows(what: str, loads: Loads) -> list[Row]:
    """Return rows of the 99th percentile of the time to the first token, and of TPOT's."""
    rows = []
    for name, title in (("ttft", "time to first token"), ("tpot", "time per output token")):
        found = {
            server: float(
                np.percentile([one.times[name] for load in each for one in load.completions], 99)
            )
            for server, each in loads.items()
        }
        rows.append(beside(f"{title}, p99, {what}", found, "s"))
    return rows
