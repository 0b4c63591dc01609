"""``specjax bench verify``: the cost of a verdict, with noise given.

Every rule's whole ``verify``, from logits to the verdict, against a plain Gumbel-max sample per
node; with top-p, against softmax and argmax. All arguments are traced: a temperature known to the
compiler would save half of the work.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from rich.console import Console

from specjax.bench.report import MOST_LOAD, Row, busy, compare, machine_row, print_rows, write_rows
from specjax.core import sampling as s
from specjax.core.topology import chain_parents
from specjax.core.types import RUNNING, Draft, Rule, Sampling, Text
from specjax.measure.turns import median_in_turns
from specjax.verify.block import block
from specjax.verify.entropy import entropy
from specjax.verify.noise import Noise
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree
from specjax.verify.synthetic import synthetic
from specjax.verify.typical import typical
from specjax.verify.walk import walk

SHAPES = ((1, 4, 32000), (8, 4, 151936))  # B, K, V
CONTEXT = 1024
VERIFY_GOAL, TOP_P_GOAL = 1.5, 5.0


class Arguments(NamedTuple):
    """The arguments of verify, at one shape."""

    noise: Noise
    gumbel: jax.Array  # [B, N, V]
    draft: Draft
    logits: jax.Array  # [B, N, V]
    text: Text
    sampling: Sampling


def bench_verify(
    json_file: Path | None,
    *,
    shapes: tuple[tuple[int, int, int], ...] = SHAPES,
    reps: int = 15,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write the rows of the benchmark. A missed goal is not a failure."""
    console = console or Console(highlight=False)
    rows, load = [machine_row()], busy()
    if load > MOST_LOAD:
        console.print(
            f"other processes keep {load:.1f} cores busy: no goal is judged", markup=False
        )
    for shape in shapes:
        console.print(f"timing verdicts at (B, K, V) = {shape} ...", markup=False)
        rows += time_rows(*shape, reps)
    print_rows(rows, console, judged=load <= MOST_LOAD)
    if json_file is not None:
        write_rows(rows, json_file)
        console.print(f"wrote {json_file}", markup=False)
    return rows


def time_rows(batch_size: int, depth: int, vocab_size: int, reps: int) -> list[Row]:
    """Return rows of every rule and its parts at one shape, timed in turns."""
    given = make_arguments(batch_size, depth, vocab_size)
    truncated = given.sampling._replace(top_p=jnp.full(batch_size, 0.9))
    rules = {
        "walk": walk,
        "rejection": rejection,
        "rejection_tree": rejection_tree,
        "block": block,
        "typical": typical(),
        "entropy": entropy(),
        "synthetic": synthetic((0.8,) * depth),
    }
    peers = {
        "argmax(logits + noise)": timed(
            lambda x, g: (x + g).argmax(-1), given.logits, given.gumbel
        ),
        "argmax(softmax(logits))": timed(lambda x: jax.nn.softmax(x).argmax(-1), given.logits),
    }
    parts = {
        "argmax(logits)": timed(s.argmax, given.logits),
        "compute_probs(logits)": timed(s.compute_probs, given.logits, given.sampling),
        "truncate(logits), top-p": timed(s.truncate, given.logits, truncated),
    }
    whole = {name: whole_verify(rule, depth, given) for name, rule in rules.items()}
    with_top_p = {
        f"{name}, top-p": whole_verify(rules[name], depth, given._replace(sampling=truncated))
        for name in ("walk", "rejection")
    }
    calls = {**peers, **parts, **whole, **with_top_p}
    medians = median_in_turns(list(calls.values()), reps, warm_up=2)
    took = dict(zip(calls, medians, strict=True))
    shape = f"({batch_size}, {depth}, {vocab_size})"
    sample, soft = peers

    def row(name: str, peer: str, goal: float | None) -> Row:
        times = (1e3 * took[name], "ms", 1e3 * took[peer])
        return compare(f"{name} {shape}", *times, f"{peer} {shape}", at_most=goal)

    return [
        *(row(name, sample, None) for name in (*peers, *parts)),
        *(row(name, sample, VERIFY_GOAL) for name in whole),
        *(row(name, soft, TOP_P_GOAL) for name in with_top_p),
    ]


def make_arguments(batch_size: int, depth: int, vocab_size: int) -> Arguments:
    """Return random logits, a chain from another random distribution, and noise."""
    shape, nodes = (batch_size, depth + 1, vocab_size), depth + 1
    keys = jax.random.split(jax.random.key(0), 6)
    drafted = 3 * jax.random.normal(keys[0], shape)
    tokens = jax.random.categorical(keys[1], drafted).astype(jnp.int32)
    parents, every = chain_parents(batch_size, nodes), jnp.ones((batch_size, nodes), bool)
    one = jnp.ones(batch_size, jnp.int32)
    return Arguments(
        Noise(jax.random.uniform(keys[2], shape[:2]), jax.random.exponential(keys[3], shape)),
        jax.random.gumbel(keys[4], shape),
        Draft(tokens, parents, every, jax.nn.softmax(drafted)),
        3 * jax.random.normal(keys[5], shape),
        Text(jnp.zeros((batch_size, CONTEXT), jnp.int32), one, one, one * CONTEXT, one * RUNNING),
        Sampling(jnp.full(batch_size, 0.8), one * depth, vocab_size * one[:, None]),
    )


def whole_verify(rule: Rule, depth: int, given: Arguments) -> Callable[[], float]:
    """Return a timer of a rule from logits to verdict; ``walk`` gets drafts without ``probs``."""
    noise, draft = (given.noise, given.draft)
    if rule is walk:
        noise, draft = given.gumbel, draft._replace(probs=None)
    verify = partial(rule.verify, depth=depth)
    return timed(verify, noise, draft, given.logits, given.text, given.sampling)


def timed(function: Callable[..., Any], *args: Any) -> Callable[[], float]:
    """Return a call that runs the compiled function once and returns its seconds."""
    compiled = jax.jit(function)

    def call() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        return time.perf_counter() - start

    return call
