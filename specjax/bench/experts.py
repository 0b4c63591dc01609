"""``specjax bench experts``: what a mixture's layer costs by the experts that its tokens choose.

A layer of Qwen3-30B-A3B's sizes with random weights in bfloat16. Tokens are routed independently
and evenly, as theory's ``moe_active_experts`` supposes. A pass that reads each chosen expert once,
and no other, takes time in proportion to their number as long as reading bounds it.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from specjax.bench.report import Row, compare, machine_row, print_rows, write_rows, write_section
from specjax.core import ops
from specjax.measure.turns import median_in_turns
from specjax.theory.moe import moe_active_experts

SIZES = {"num_experts": 128, "chosen": 8, "hidden": 2048, "wide": 768}  # Qwen3-30B-A3B's
TOKENS = (1, 2, 4, 8, 16, 32)
NOTE = "One layer's routed experts; theory is `moe_active_experts`, and its share of one token's."


def bench_experts(
    json_file: Path | None,
    *,
    reps: int = 15,
    num_experts: int = SIZES["num_experts"],
    chosen: int = SIZES["chosen"],
    hidden: int = SIZES["hidden"],
    wide: int = SIZES["wide"],
    readme: Path | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write milliseconds and experts read, by the number of tokens.

    Args:
        json_file: where the rows are written as JSON; None: nowhere.
        reps: repetitions, of which medians are reported.
        num_experts: of the layer.
        chosen: of them, by each token.
        hidden: features of a token.
        wide: of an expert.
        readme: a Markdown file, in whose section "experts" to put the table.
        console: where to print.
    """
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = ((num_experts, wide, hidden),) * 2 + ((num_experts, hidden, wide),)
    stacks = [
        jax.random.normal(key, shape, jnp.bfloat16) * shape[-1] ** -0.5
        for key, shape in zip(keys, shapes, strict=True)
    ]
    pairs = [(stack, None) for stack in stacks]
    rng, rows = np.random.default_rng(0), [machine_row()]
    given = {tokens: routed(rng, tokens, num_experts, chosen, hidden) for tokens in TOKENS}
    times = median_in_turns([once(*given[tokens], *pairs) for tokens in TOKENS], reps, warm_up=2)
    for tokens, seconds in zip(TOKENS, times, strict=True):
        read = np.unique(np.asarray(given[tokens][1])).size
        expected = moe_active_experts(num_experts, chosen, tokens)
        name = f"{tokens} tokens"
        rows.append(compare(f"{name}: experts read", read, "experts", expected, "theory"))
        share = expected / chosen
        rows.append(compare(f"{name}: T(n)/T(1)", seconds / times[0], "", share, "theory"))
        rows.append(Row(name=f"{name}: time", value=1e3 * seconds, unit="ms"))
    print_rows(rows, console or Console(highlight=False))
    if json_file is not None:
        write_rows(rows, json_file)
    if readme is not None:
        write_section(rows, readme, "experts", [NOTE])
    return rows


def routed(
    rng: np.random.Generator, tokens: int, num_experts: int, chosen: int, hidden: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return tokens, the experts that each has chosen, and their weights."""
    x = jnp.asarray(rng.standard_normal((tokens, hidden), np.float32))
    choice = [rng.choice(num_experts, chosen, replace=False) for _ in range(tokens)]
    weights = jnp.full((tokens, chosen), 1 / chosen, jnp.float32)
    return x, jnp.asarray(np.array(choice, np.int32)), weights


def once(*given: Any) -> Callable[[], float]:
    """Return a function that times ``ops.experts`` on its arguments."""

    def run() -> float:
        start = time.perf_counter()
        ops.experts(*given).block_until_ready()
        return time.perf_counter() - start

    return run
