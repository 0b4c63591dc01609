"""``specjax bench int8``: products with int8 matrices beside the same in bfloat16 and float32.

At the sizes of a layer of Qwen3-0.6B, by the number of columns that a step has: one per row of the
batch and node of the draft. The int8 product includes the scale of each output. A pass multiplies
by all matrices, which no cache holds, as a model's layers are.
"""

import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from specjax.bench.plan import QWEN3_600M
from specjax.bench.report import Row, compare, machine_row, print_rows, write_rows, write_section
from specjax.core import ops
from specjax.core.types import Int8Matrix
from specjax.measure.turns import median_in_turns

SIZES = (  # outputs and inputs of a matrix
    (2 * QWEN3_600M.intermediate_size, QWEN3_600M.hidden_size),
    (QWEN3_600M.hidden_size, QWEN3_600M.intermediate_size),
)
COLUMNS = (1, 4, 8, 32, 256)
LAYERS = 14  # matrices of each size: 66 MB in int8
NOTE = "Both matrices of the MLP of {} layers of Qwen3-0.6B's size; a ratio is of speeds."

Weights = list[jax.Array] | list[Int8Matrix]


def bench_int8(
    json_file: Path | None,
    *,
    reps: int = 15,
    sizes: tuple[tuple[int, int], ...] = SIZES,
    columns: tuple[int, ...] = COLUMNS,
    layers: int = LAYERS,
    readme: Path | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write milliseconds of a pass over all matrices, by their type in memory.

    Args:
        json_file: where the rows are written as JSON; None: nowhere.
        reps: repetitions, of which medians are reported.
        sizes: outputs and inputs of the matrices of a layer.
        columns: how many vectors a pass multiplies.
        layers: how often each size occurs.
        readme: a Markdown file, in whose section "int8" to put the table.
        console: where to print.
    """
    rng, rows = np.random.default_rng(0), [machine_row()]
    numbers = [rng.integers(-127, 128, size, np.int8) for _ in range(layers) for size in sizes]
    scales = [jnp.full(len(one), 1e-3, jnp.float32) for one in numbers]
    pairs = zip(numbers, scales, strict=True)
    kept: dict[str, Weights] = {
        "int8": [Int8Matrix(jnp.asarray(one), scale) for one, scale in pairs],
        "bfloat16": [jnp.asarray(one, jnp.bfloat16) for one in numbers],
        "float32": [jnp.asarray(one, jnp.float32) for one in numbers],
    }
    for count in columns:
        x = {
            size: jnp.asarray(rng.standard_normal((count, size), np.float32))
            for size in {size for _, size in sizes}
        }
        calls = [once(x, weights) for weights in kept.values()]
        ours, *peers = median_in_turns(calls, reps, warm_up=2)
        for name, peer in zip(("bfloat16", "float32"), peers, strict=True):
            what = f"{count} columns: int8"
            rows.append(compare(what, 1 / ours, "passes/s", 1 / peer, name))
    print_rows(rows, console or Console(highlight=False))
    if json_file is not None:
        write_rows(rows, json_file)
    if readme is not None:
        write_section(rows, readme, "int8", [NOTE.format(layers)])
    return rows


def once(x: dict[int, jax.Array], weights: Weights) -> Callable[[], float]:
    """Return a function that times the products of ``x``, by its size, with all matrices."""

    @jax.jit
    def multiply(x: dict[int, jax.Array], weights: Weights) -> list[jax.Array]:
        shapes = [jax.tree.leaves(one)[0].shape for one in weights]
        return [ops.linear(x[size], one) for one, (_, size) in zip(weights, shapes, strict=True)]

    def run() -> float:
        start = time.perf_counter()
        jax.block_until_ready(multiply(x, weights))
        return time.perf_counter() - start

    return run
