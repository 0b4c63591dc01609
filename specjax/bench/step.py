"""``specjax bench step``: the cost of a round.

T(n) is one jitted, donated ``decode.step`` that verifies n tokens per row: a drafter that
proposes a fixed chain of n - 1 tokens costs nothing, so the time is the target's alone. Times do
not depend on the values of the weights, which are random unless a model is named.
"""

import functools
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from specjax.bench.load_memory import peak_rows
from specjax.bench.plan import Setting
from specjax.bench.report import MOST_LOAD, Row, busy, compare, machine_row, print_rows, write_rows
from specjax.bundled import resolve
from specjax.core import cache as kv
from specjax.core import decode
from specjax.core.sampling import row_key
from specjax.core.types import RUNNING, Drafter, Engine, Params, PyTree, Sampling, State, Text
from specjax.drafters.none import chain, stateless
from specjax.measure.turns import median_in_turns
from specjax.models.build import build_target, init_params
from specjax.verify.walk import walk
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params

SENTINEL = 7.0  # fills a cache, so that every slot that is written shows


step = jax.jit(decode.step, static_argnums=0, donate_argnums=2)


def bench_step(
    json_file: Path | None,
    *,
    model: str | None = None,
    setting: Setting | None = None,
    reps: int = 15,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write the rows of the benchmark. A missed goal is not a failure.

    ``model`` is a checkpoint folder or "bundled"; None takes 88M random parameters.
    """
    setting, console = setting or Setting(), console or Console(highlight=False)

    def echo(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    if model is None:
        weights = init_params(setting.config, jax.random.key(0))
    else:
        config, _ = read_config(resolve(model), dtype="float32")
        weights = load_params(resolve(model), config)
        setting = setting._replace(config=config, goal=1.3)
    size = sum(leaf.size for leaf in jax.tree.leaves(weights)) / 1e6
    layers = size - setting.config.vocab_size * setting.config.hidden_size / 1e6
    echo(
        f"{model or 'random weights'}: {size:.0f}M parameters ({layers:.0f}M in the layers), "
        f"{setting.config.dtype}; "
        f"medians of {reps} interleaved runs"
    )
    rows = [machine_row()]
    load = busy()
    trusted = load <= MOST_LOAD
    if not trusted:
        echo(f"other processes keep {load:.1f} cores busy: no goal is judged on these numbers")
    echo("timing T(n), one round over n tokens per row ...")
    rows += time_rows(setting, weights, reps)
    echo("checking what a round writes ...")
    rows += cache_rows(setting, weights, reps)
    echo("loading a checkpoint in a process of its own ...")
    rows += peak_rows(setting.config, weights, echo)
    print_rows(rows, console, judged=trusted)
    if json_file is not None:
        write_rows(rows, json_file)
        echo(f"wrote {json_file}")
    return rows


@functools.cache
def fixed_chain(depth: int) -> Drafter:
    """Return a drafter that always proposes ``depth`` times token 0."""

    def propose(params, state, text, sampling, keys, window):
        tokens = jnp.zeros((text.tokens.shape[0], depth), jnp.int32)
        return chain(text, tokens, jnp.ones_like(tokens, dtype=bool)), state

    return stateless(propose, depth)


def engine(setting: Setting, nodes: int) -> Engine:
    """Return the engine that verifies ``nodes`` tokens per row and round."""
    return Engine(build_target(setting.config), fixed_chain(nodes - 1), walk, setting.window)


def make_state(setting: Setting, params: Params, batch_size: int, capacity: int) -> State:
    """Return a state of running rows with ``context`` tokens; it fits every n."""
    vocab_size = setting.config.vocab_size
    tokens = np.random.default_rng(0).integers(0, vocab_size, (batch_size, capacity))
    lengths = jnp.full(batch_size, setting.context, jnp.int32)
    limits = jnp.full(batch_size, setting.window, jnp.int32)
    running = jnp.full(batch_size, RUNNING, jnp.int32)
    text = Text(jnp.asarray(tokens, jnp.int32), lengths, lengths, limits, running)
    sampling = Sampling(
        temperature=jnp.zeros(batch_size),
        max_draft=jnp.full(batch_size, max(setting.nodes), jnp.int32),
        stop_ids=jnp.full((batch_size, 1), vocab_size, jnp.int32),
    )
    keys = jnp.stack([row_key(i) for i in range(batch_size)])
    return rewind(setting, decode.init_state(engine(setting, 1), params, text, sampling, keys))


def rewind(setting: Setting, state: State) -> State:
    """Return the state rolled back to ``context`` tokens."""
    batch_size = state.text.lengths.shape[0]
    lengths = jnp.full(batch_size, setting.context, jnp.int32)
    running = jnp.full(batch_size, RUNNING, jnp.int32)
    text = state.text._replace(lengths=lengths, reason=running)
    cache = state.cache._replace(lengths=lengths - 1)
    return jax.block_until_ready(state._replace(text=text, cache=cache))


class Stepper:
    """A state that is advanced in place, by engines of any number of nodes."""

    def __init__(self, setting: Setting, params: Params, batch_size: int, capacity: int):
        self._setting, self._params = setting, params
        self.state = make_state(setting, params, batch_size, capacity)

    def seconds(self, nodes: int) -> float:
        """Return the seconds of one round over ``nodes`` tokens per row."""
        state, one = rewind(self._setting, self.state), engine(self._setting, nodes)
        start = time.perf_counter()
        self.state, info = step(one, self._params, state)
        jax.block_until_ready((self.state, info))
        return time.perf_counter() - start


def time_rows(setting: Setting, weights: PyTree, reps: int) -> list[Row]:
    """Return rows of T(n) / T(1) for every batch size, and of each batch's T(1) over batch 1's."""
    rows, alone = [], 0.0
    for batch_size in setting.batches:
        stepper = Stepper(setting, Params(weights, None), batch_size, setting.window)
        calls = [functools.partial(stepper.seconds, nodes) for nodes in setting.nodes]
        seconds = median_in_turns(calls, reps, warm_up=2)
        for nodes, one in zip(setting.nodes, seconds, strict=True):
            goal = setting.goal if nodes == 4 and batch_size == 1 else None
            name = f"T({nodes}), batch {batch_size}"
            peer = f"T({setting.nodes[0]}), batch {batch_size}"
            rows.append(compare(name, 1e3 * one, "ms", 1e3 * seconds[0], peer, at_most=goal))
        alone = alone or seconds[0]
        if batch_size > setting.batches[0]:
            goal = 1.6 if batch_size == 4 else None
            name = f"T(1), batch {batch_size} over batch {setting.batches[0]}"
            peer = f"T(1), batch {setting.batches[0]}"
            rows.append(compare(name, 1e3 * seconds[0], "ms", 1e3 * alone, peer, at_most=goal))
    return rows


def cache_rows(setting: Setting, weights: PyTree, reps: int, nodes: int = 4) -> list[Row]:
    """Return rows that check that a round writes ``nodes`` slots per layer at any capacity.

    Copies are sought in the compiled program, written bytes are counted in a cache full of a
    sentinel, and the time and the scratch memory of two capacities are compared.
    """
    params, small, large = Params(weights, None), setting.capacity, 4 * setting.capacity
    steppers = {size: Stepper(setting, params, 1, size) for size in (small, large)}
    compiled = {
        size: step.lower(engine(setting, nodes), params, stepper.state).compile()
        for size, stepper in steppers.items()
    }
    copies = {
        size: count_copies(one.as_text() or "", kv.all_slots(steppers[size].state)[0].keys.shape)
        for size, one in compiled.items()
    }
    scratch = {size: scratch_bytes(one) for size, one in compiled.items()}
    calls = [functools.partial(steppers[size].seconds, nodes) for size in (small, large)]
    times = dict(zip((small, large), median_in_turns(calls, reps, warm_up=2), strict=True))
    written = {size: count_written(steppers[size], nodes) for size in (small, large)}
    copied = max(copies.values())
    return [
        Row(
            name="cache-shaped copies in the compiled round",
            value=copied,
            unit="copies",
            goal="0",
            met=copied == 0,
        ),
        *(
            compare(f"{name}, capacity {large}", by[large], unit, by[small], f"capacity {small}")
            for name, unit, by in (
                (f"KV bytes written by a round of {nodes}", "B", written),
                (f"scratch memory of a round of {nodes}", "B", scratch),
                (f"T({nodes})", "ms", {size: 1e3 * one for size, one in times.items()}),
            )
        ),
    ]


def count_copies(program: str, shape: Sequence[int]) -> int:
    """Return the number of instructions of a compiled program that copy an array of this shape."""
    sizes = ",".join(map(str, shape))
    return len(re.findall(rf"= \w+\[{sizes}\]\S* (?:copy|copy-start|transpose)\(", program))


def scratch_bytes(compiled: Any) -> int:
    """Return the bytes of temporary memory that a compiled program needs."""
    return compiled.memory_analysis().temp_size_in_bytes


def count_written(stepper: Stepper, nodes: int) -> int:
    """Return the bytes that one round changes in a cache filled with a sentinel."""
    cache = stepper.state.cache
    full = jax.tree.map(lambda leaf: jnp.full_like(leaf, SENTINEL), cache.layers)
    cache = cache._replace(layers=full)
    stepper.state = stepper.state._replace(cache=cache)
    stepper.seconds(nodes)
    leaves = jax.tree.leaves(stepper.state.cache.layers)
    return sum(int((leaf != SENTINEL).sum()) * leaf.dtype.itemsize for leaf in leaves)
