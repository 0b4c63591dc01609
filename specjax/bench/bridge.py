"""``specjax bench bridge``: a round on npu_bridge's CPU executor against the jitted round.

The same ``decode.step`` over 4 tokens per row, in JAX, lowered and run call by call, lowered and
compiled by torch.compile, and lowered in bfloat16; in turns, in one run. The time of the whole
round is measured: proposing on the host, noise, conversions, copies of the text.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from specjax.bench.plan import Setting
from specjax.bench.report import MOST_LOAD, Row, busy, compare, machine_row, print_rows, write_rows
from specjax.bench.step import Stepper, engine, make_state, rewind
from specjax.bundled import resolve
from specjax.core.types import Params, PyTree
from specjax.engine.device import bridge
from specjax.measure.turns import median_in_turns
from specjax.models.build import init_params
from specjax.models.config import ModelConfig
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params

NODES = 4
EAGER, NARROW = 1.6, 1 / 1.3  # of JAX's float32 round, at 100M
LOWERING = 10.0  # seconds for 12 layers
CPU_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")  # x86, x86, Arm


def bench_bridge(
    json_file: Path | None,
    *,
    reps: int = 15,
    compiled: bool = True,
    setting: Setting | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write the rows of the benchmark. A missed goal is not a failure."""
    console = console or Console(highlight=False)
    rows, load = [machine_row()], busy()
    if load > MOST_LOAD:
        console.print(f"other processes keep {load:.1f} cores busy: no goal is judged")
    if setting is None:
        config, _ = read_config(resolve("bundled"), dtype="float32")
        weights = load_params(resolve("bundled"), config)
        console.print("timing rounds of the bundled model ...")
        rows += time_rounds("bundled", Setting(config), weights, reps, compiled, judged=False)
    setting = setting or Setting()
    console.print("timing rounds of random weights ...")
    weights = init_params(setting.config, jax.random.key(0))
    size = f"{sum(leaf.size for leaf in jax.tree.leaves(weights)) / 1e6:.0f}M"
    rows += time_rounds(size, setting, weights, reps, compiled, judged=True)
    rows.append(time_lowering(setting))
    print_rows(rows, console, judged=load <= MOST_LOAD)
    if json_file is not None:
        write_rows(rows, json_file)
        console.print(f"wrote {json_file}")
    return rows


def time_rounds(
    name: str, setting: Setting, weights: PyTree, reps: int, compiled: bool, *, judged: bool
) -> list[Row]:
    """Return the times of one model's rounds in every variant, in turns."""
    narrow = setting._replace(config=with_dtype(setting.config, "bfloat16"))
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), weights)
    jitted = Stepper(setting, Params(weights, None), 1, setting.window)
    lowered = {
        "eager, float32": Lowered(setting, weights, compile=False),
        "eager, bfloat16": Lowered(narrow, half, compile=False),
    }
    if compiled:
        lowered["torch.compile, float32"] = Lowered(setting, weights, compile=True)
        lowered["torch.compile, bfloat16"] = Lowered(narrow, half, compile=True)
    calls: list[Callable[[], float]] = [functools.partial(jitted.seconds, NODES)]
    calls += [one.seconds for one in lowered.values()]
    peer, *others = median_in_turns(calls, reps, warm_up=3)  # compiles and lowers first
    goals = {"eager, float32": EAGER}
    if has_bf16():
        goals["eager, bfloat16"] = NARROW
    rows = [
        compare(
            f"round of {NODES}, {name}, {way}", 1e3 * one, "ms", 1e3 * peer, "jax.jit, float32",
            at_most=goals.get(way) if judged else None,
        )
        for way, one in zip(lowered, others, strict=True)
    ]  # fmt: skip
    programs = max(one.executor.num_lowered for one in lowered.values())
    return [
        *rows,
        Row(
            name=f"programs lowered for {reps + 3} rounds, {name}", value=programs,
            unit="programs", goal="1", met=programs == 1,
        ),
    ]  # fmt: skip


class Lowered:
    """A state that the lowered round advances."""

    def __init__(self, setting: Setting, weights: PyTree, *, compile: bool):
        self.executor = bridge().Executor("torch-cpu", host_drafter=True, compile=compile)
        self.setting, self.engine = setting, engine(setting, NODES)
        self.params = self.executor.place_params(Params(weights, None))
        state = make_state(setting, Params(weights, None), 1, setting.capacity)
        text, _, _, sampling, keys = state
        made = self.executor.init_state(self.engine, self.params, text, sampling, keys)
        self.state: Any = made

    def seconds(self) -> float:
        """Return the seconds of one round."""
        state = rewind(self.setting, self.state)
        start = time.perf_counter()
        self.state, _ = self.executor.step(self.engine, self.params, state)
        jax.block_until_ready(self.state.text)
        return time.perf_counter() - start


def with_dtype(config: ModelConfig, dtype: str) -> ModelConfig:
    """Return the config with another dtype."""
    return dataclasses.replace(config, dtype=dtype)


def has_bf16() -> bool:
    """Return whether the CPU has bfloat16 products."""
    info = Path("/proc/cpuinfo")
    words = info.read_text().split() if info.exists() else []
    return any(flag in words for flag in CPU_FLAGS)


def time_lowering(setting: Setting) -> Row:
    """Return the row of the time that lowering a forward pass for an NPU takes."""
    targets = bridge().lowering_targets
    sizes = targets.Sizes(1, NODES, setting.capacity, setting.window)
    part = targets.lowering_target("forward", with_dtype(setting.config, "bfloat16"), sizes)
    seconds = part.lower(plan="npu").report.seconds
    layers = setting.config.num_layers
    return Row(
        name=f"lowering a forward pass of {layers} layers", value=seconds, unit="s",
        goal=f"< {LOWERING:g}", met=seconds < LOWERING,
    )  # fmt: skip
