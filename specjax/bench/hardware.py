"""``specjax bench hardware``: this machine's bandwidth and operations, for the roofline."""

import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console

from specjax.bench.bandwidth import read_bandwidth
from specjax.bench.report import MOST_LOAD, busy, num_cores
from specjax.core import ops
from specjax.host.files import write_json
from specjax.host.machine import processor, stamp
from specjax.measure.turns import median_in_turns
from specjax.theory.roofline import Hardware

ROWS, SIZE = 1024, 4096  # of the product whose operations are counted


def bench_hardware(
    json_file: Path | None,
    *,
    reps: int = 9,
    rows: int = ROWS,
    size: int = SIZE,
    console: Console | None = None,
) -> Hardware:
    """Return, print and write what this CPU reads and multiplies per second, in bfloat16.

    The file is what ``--hardware FILE`` of ``explain`` and ``theory plan`` reads.
    """
    console = console or Console(highlight=False)
    if (load := busy()) > MOST_LOAD:
        console.print(f"other processes keep {load:.1f} cores busy: these numbers are too low")
    bandwidth, flops = read_bandwidth(reps), product_flops(rows, size, reps)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    name = f"{num_cores()} cores of {processor()}"
    found = Hardware(name, bandwidth, flops, f"measured: {stamp()}", float(memory))
    console.print(
        f"{name}: reads {bandwidth / 1e9:.1f} GB/s, {flops / 1e9:.0f} GFLOP/s in bfloat16, "
        f"{memory / 2**30:.0f} GiB",
        soft_wrap=True,
        markup=False,
    )
    if json_file is not None:
        write_json(json_file, found._asdict())
        console.print(f"wrote {json_file}", soft_wrap=True, markup=False)
    return found


def product_flops(rows: int, size: int, reps: int) -> float:
    """Return the operations per second of a product in bfloat16, by the median of some."""
    keys = jax.random.split(jax.random.key(0))
    x, weight = (
        jax.random.normal(key, shape, jnp.bfloat16)
        for key, shape in zip(keys, ((rows, size), (size, size)), strict=True)
    )
    product = jax.jit(ops.linear)

    def once() -> float:
        start = time.perf_counter()
        product(x, weight).block_until_ready()
        return time.perf_counter() - start

    (seconds,) = median_in_turns([once], reps, warm_up=2)
    return 2.0 * rows * size * size / seconds
