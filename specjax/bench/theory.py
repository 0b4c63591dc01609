"""``specjax bench theory``: the speed of the formulas and the simulations."""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from specjax import theory
from specjax.bench.plain_chain import addressed, plain_chain, unaddressed
from specjax.bench.report import MOST_LOAD, Row, busy, compare, machine_row, print_rows, write_rows
from specjax.measure.turns import median_in_turns
from specjax.simulate import chain, correlated_pair, fit_costs, fixed_k, serving
from specjax.simulate.noise import noise_key
from specjax.simulate.workload import closed_loop

ALPHA, DEPTH, VOCAB = 0.8, 4, 32


class Scale(NamedTuple):
    """The sizes of the benchmark."""

    surface: tuple[int, int, int] = (256, 64, 16)  # alpha x K x c
    rows: int = 1024
    rounds: int = 64
    plain_rounds: int = 200
    clients: int = 32
    requests: int = 100
    output: int = 300  # tokens per request
    seeds: int = 1000
    law_rounds: int = 4096


def bench_theory(
    json_file: Path | None,
    *,
    reps: int = 5,
    scale: Scale | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write the rows of the benchmark. A missed goal is not a failure."""
    scale, console = scale or Scale(), console or Console(highlight=False)

    def echo(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    rows = [machine_row()]
    load = busy()
    trusted = load <= MOST_LOAD
    if not trusted:
        echo(f"other processes keep {load:.1f} cores busy: no goal is judged on these numbers")
    echo(f"medians of {reps} runs, compiled beforehand")
    echo("speedup over a grid of alpha, K and c ...")
    rows.append(surface_row(scale, reps))
    echo("chains of a toy target through decode.step ...")
    rows += chain_rows(scale, reps)
    echo("the serving simulator ...")
    rows += serving_rows(scale, reps)
    print_rows(rows, console, judged=trusted)
    if json_file is not None:
        write_rows(rows, json_file)
        echo(f"wrote {json_file}")
    return rows


def clock(call: Callable[[], object]) -> float:
    """Return the seconds until a call's results are ready."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def surface_row(scale: Scale, reps: int) -> Row:
    """Return the row of one jitted evaluation of the speedup over the whole grid."""
    alphas, depths, costs = scale.surface
    alpha = jnp.linspace(0, 1, alphas)[:, None, None]
    K = jnp.arange(depths)[None, :, None]
    c = jnp.linspace(0, 1, costs)[None, None]
    jitted = jax.jit(theory.speedup)
    jax.block_until_ready(jitted(alpha, K, c))
    (seconds,) = median_in_turns([lambda: clock(lambda: jitted(alpha, K, c))], reps)
    name = f"speedup surface, {alphas} alpha x {depths} K x {costs} c"
    return at_most(name, 1e3 * seconds, "ms", 50)


def chain_rows(scale: Scale, reps: int) -> list[Row]:
    """Return rows of ``chain`` and two plain Python loops on the same pair of models."""
    pair = correlated_pair(ALPHA, VOCAB)
    target, draft = (np.asarray(table, np.float64).tolist() for table in pair)
    words = jax.random.key_data(jax.random.split(noise_key(0), 1)[0]).tolist()
    lengths = []

    def compiled():
        return chain(pair, 1.0, DEPTH, scale.rows, scale.rounds)

    def by_law():
        return chain(pair, 1.0, DEPTH, scale.rows, scale.law_rounds, by="law")

    def plain(uniform):
        text = plain_chain(target, draft, uniform, 1.0, DEPTH, scale.plain_rounds)
        lengths.append(len(text) - 1)

    tokens, drawn = (
        int(jnp.sum(jax.block_until_ready(call()).num_emitted)) for call in (compiled, by_law)
    )
    calls = [
        compiled,
        by_law,
        functools.partial(plain, addressed(tuple(words))),
        functools.partial(plain, unaddressed(0)),
    ]
    seconds = median_in_turns([functools.partial(clock, call) for call in calls], reps)
    speed = tokens / seconds[0]
    same, own = lengths[0] / seconds[2], np.mean(lengths[1::2]) / seconds[3]
    name = f"chain, V = {VOCAB}, K = {DEPTH}, alpha = {ALPHA}"
    several = jax.block_until_ready(chain(pair, 1.0, DEPTH, scale.seeds, 1))
    return [
        at_least(name, speed, "tok/s", 3e5),
        at_least(f"{name}, by its law", drawn / seconds[1], "tok/s", 20 * 448_000),
        compare(
            "chain over plain Python, number for number",
            speed,
            "tok/s",
            same,
            "one row, the same noise and text",
            at_least=50,
        ),
        compare(
            "chain over plain Python, its own noise",
            speed,
            "tok/s",
            float(own),
            "one row, numbers of the random module",
        ),
        at_least("chain, seeds in one call", several.num_emitted.shape[-1], "seeds", scale.seeds),
    ]


def serving_rows(scale: Scale, reps: int) -> list[Row]:
    """Return rows of the simulator's time over simulated time, for one and for many seeds."""
    costs, _ = fit_costs()
    workload = closed_loop(scale.clients, scale.requests, 200, scale.output, 0.6, output_cv=0.5)
    policy = fixed_k(3, scale.clients)

    def served(num_seeds):
        return serving(workload, costs, policy, scale.clients, num_seeds=num_seeds)

    one = served(None)
    (seconds,) = median_in_turns([lambda: clock(lambda: served(None))], reps)
    served(scale.seeds)
    start = time.perf_counter()
    many = served(scale.seeds)
    spent = time.perf_counter() - start
    return [
        compare(
            f"serving at concurrency {scale.clients}, simulated time",
            float(one.end),
            "s",
            seconds,
            "wall clock",
            at_least=200,
        ),
        compare(
            f"serving, {many.end.shape[0]:,} seeds in one call, simulated time",
            float(many.end.sum()),
            "s",
            spent,
            "wall clock",
            at_least=200,
        ),
        at_least("serving, seeds in one call", many.end.shape[0], "seeds", scale.seeds),
    ]


def at_most(name: str, value: int | float, unit: str, goal: int | float) -> Row:
    """Return a row whose goal bounds its own value from above."""
    return Row(name=name, value=value, unit=unit, goal=f"<= {goal:g} {unit}", met=value <= goal)


def at_least(name: str, value: int | float, unit: str, goal: int | float) -> Row:
    """Return a row whose goal bounds its own value from below."""
    return Row(name=name, value=value, unit=unit, goal=f">= {goal:g} {unit}", met=value >= goal)
