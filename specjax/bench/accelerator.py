"""``specjax bench accelerator``: plain and verifying steps of a large model on JAX's device.

A step must read every weight but the embeddings, and the keys and values of its rows, once: these
bytes over the step's time, as a share of the bandwidth that the same run measures, say how far it
is from what the memory allows. Weights are random, bfloat16, and made on the device; several steps
are enqueued before the first is waited for, as the engine does.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from specjax.bench.plan import QWEN3_8B, Setting
from specjax.bench.report import Row, compare, machine_row, print_rows, write_rows
from specjax.bench.step import engine, make_state, rewind, step
from specjax.core import ops
from specjax.core.topology import causal
from specjax.core.types import Params, PyTree
from specjax.measure.turns import median_in_turns
from specjax.models.build import build_target, init_params
from specjax.models.config import ModelConfig

SETTING = Setting(
    config=QWEN3_8B,
    capacity=1024,
    context=512,
    window=1024,
    batches=(1, 4, 8, 32, 128),
    nodes=(1, 4, 8),
)
STEPS = 8  # enqueued before the first is waited for
PROMPTS = 512, 2048


def bench_accelerator(
    json_file: Path | None,
    *,
    setting: Setting = SETTING,
    prompts: tuple[int, ...] = PROMPTS,
    num_bytes: int = 2**32,
    reps: int = 7,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write the rows of the benchmark; ``num_bytes`` are read for bandwidth."""
    console = console or Console(highlight=False)

    def echo(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    device = jax.devices()[0]
    echo(f"{device.platform}: {device.device_kind}; medians of {reps} interleaved runs")
    rows, start = [machine_row()], time.perf_counter()

    def add(found: list[Row]) -> None:
        for row in found:
            rows.append(row)
            peer = "" if row.ratio is None else f" ({row.ratio:.2f} of {row.against})"
            now = time.perf_counter() - start
            echo(f"{now:5.0f} s  {row.name}: {row.value:.4g} {row.unit}{peer}")

    bandwidth = read_bandwidth(num_bytes, reps)
    add([Row(name="read bandwidth", value=bandwidth / 1e9, unit="GB/s")])
    add(part_rows(setting, reps))
    weights = init_params(setting.config, jax.random.key(0))
    for length in prompts:
        add([prompt_row(setting.config, weights, length, reps)])
    for batch_size in setting.batches:
        add(step_rows(setting, weights, batch_size, bandwidth, reps))
    print_rows(rows, console, judged=True)
    if json_file is not None:
        write_rows(rows, json_file)
        echo(f"wrote {json_file}")
    return rows


def read_bandwidth(num_bytes: int, reps: int) -> float:
    """Return bytes per second of reading an array that no cache holds."""
    values = jnp.ones(num_bytes // 4, jnp.float32)
    total = jax.jit(lambda x: jnp.max(x))
    (seconds,) = median_in_turns([timed(lambda: total(values))], reps, warm_up=2)
    return values.nbytes / seconds


def timed(call: Callable[[], Any], times: int = 1) -> Callable[[], float]:
    """Return a function that gives the seconds of one of ``times`` calls, enqueued together."""

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready([call() for _ in range(times)])
        return (time.perf_counter() - start) / times

    return seconds


def step_bytes(setting: Setting, weights: PyTree, batch_size: int) -> int:
    """Return the bytes that a step must read: all weights but the embeddings, keys and values."""
    config = setting.config
    matrices = sum(leaf.nbytes for leaf in jax.tree.leaves(weights))
    if not config.tie_word_embeddings:
        matrices -= weights["embed_tokens"]["weight"].nbytes
    width = jnp.dtype(config.dtype).itemsize
    token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * width
    return matrices + batch_size * setting.context * token


def step_rows(
    setting: Setting, weights: PyTree, batch_size: int, bandwidth: float, reps: int
) -> list[Row]:
    """Return rows of a step over 1 and more tokens per row: its time, and the bandwidth it uses."""
    params = Params(weights, None)
    state = make_state(setting, params, batch_size, setting.capacity)
    needed, rows = step_bytes(setting, weights, batch_size), []

    def seconds(nodes: int) -> float:
        nonlocal state
        state, one = rewind(setting, state), engine(setting, nodes)
        start = time.perf_counter()
        for _ in range(STEPS):
            state, _ = step(one, params, state)
        jax.block_until_ready(state)
        return (time.perf_counter() - start) / STEPS

    calls = [functools.partial(seconds, nodes) for nodes in setting.nodes]
    found = median_in_turns(calls, reps, warm_up=2)
    for nodes, one in zip(setting.nodes, found, strict=True):
        name = f"step over {nodes}, batch {batch_size}"
        plain = f"step over {setting.nodes[0]}, batch {batch_size}"
        rows.append(compare(name, 1e3 * one, "ms", 1e3 * found[0], plain))
        share = f"{name}: bandwidth used"
        row = compare(share, needed / one / 1e9, "GB/s", bandwidth / 1e9, "read bandwidth")
        rows.append(row)
    return rows


def prompt_row(config: ModelConfig, weights: PyTree, length: int, reps: int) -> Row:
    """Return the row of reading a prompt in one pass, its last position alone through the head."""
    target = build_target(config)
    visible = causal(length)
    positions = jnp.arange(length, dtype=jnp.int32)[None]
    last = jnp.array([length - 1])

    @jax.jit
    def read(weights: PyTree, tokens: jax.Array) -> jax.Array:
        cache = target.init_cache(1, length)
        output, _ = target.forward(
            weights, tokens, positions, visible, cache, length, last, jnp.ones((1, length), bool)
        )
        return target.logits(weights, output.hidden)

    tokens = jax.random.randint(jax.random.key(1), (1, length), 0, config.vocab_size)
    (seconds,) = median_in_turns([timed(lambda: read(weights, tokens))], reps, warm_up=2)
    return Row(name=f"reading {length} tokens", value=length / seconds, unit="tokens/s")


def part_rows(setting: Setting, reps: int) -> list[Row]:
    """Return rows of our attention and products beside JAX's own, at the steps' shapes."""
    config, rows = setting.config, []
    dtype, key = jnp.dtype(config.dtype), jax.random.key(0)
    heads, narrow, size = config.num_heads, config.num_kv_heads, config.head_dim
    batch_size = sorted(setting.batches)[-2:][0]
    for batch, nodes, window in (
        (batch_size, 1, setting.window),
        (batch_size, setting.nodes[-1], setting.window),
        (1, setting.window, setting.window),
    ):
        query = jax.random.normal(key, (batch, nodes, heads, size), dtype)
        keys = jax.random.normal(key, (batch, narrow, window, size), dtype)
        first = window - nodes
        mask = jnp.arange(window)[None] <= first + jnp.arange(nodes)[:, None]
        mask = jnp.broadcast_to(mask[None], (batch, nodes, window))
        theirs = jax.jit(peer_attention)
        ours, peer = median_in_turns(
            [
                timed(functools.partial(ops.attention, query, keys, keys, mask), STEPS),
                timed(functools.partial(theirs, query, keys, keys, mask), STEPS),
            ],
            reps,
            warm_up=2,
        )
        name = f"attention, {batch} x {nodes} queries over {window}"
        rows.append(compare(name, 1e6 * ours, "us", 1e6 * peer, "jax.nn.dot_product_attention"))
    weight = jax.random.normal(key, (config.intermediate_size, config.hidden_size), dtype)
    product = jax.jit(lambda x, w: x @ w)
    flipped = jnp.asarray(weight.T)
    for columns in (1, batch_size, batch_size * setting.nodes[-1], setting.window):
        x = jax.random.normal(key, (columns, config.hidden_size), dtype)
        ours, peer = median_in_turns(
            [
                timed(functools.partial(ops.linear, x, weight), STEPS),
                timed(functools.partial(product, x, flipped), STEPS),
            ],
            reps,
            warm_up=2,
        )
        rows.append(compare(f"linear, {columns} rows", 1e6 * ours, "us", 1e6 * peer, "x @ w"))
    return rows


def peer_attention(query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> Any:
    """Return JAX's own attention over a cache laid out as ours."""
    keys, values = (leaf.swapaxes(1, 2) for leaf in (keys, values))
    return jax.nn.dot_product_attention(query, keys, values, mask=mask[:, None])
