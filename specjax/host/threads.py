"""Bind XLA's threads to one core each, as vLLM binds its own.

A product ends when its last thread does. Linux wakes both threads of two cores on one of them
after a pause, and takes 20 ms to move one away: a prompt of 512 tokens on the bundled model took
54 ms after half a second of rest, and 34 with bound threads (33 and 30 without a rest; a virtual
Xeon with 2 cores).
"""

import os
from pathlib import Path

import jax

VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"  # vLLM's: auto or nobind
POOL = "tf_XLAEigen"  # what Linux calls the threads that kernels and XLA's own products run on


def bind_threads() -> list[int]:
    """Bind each thread of XLA's pool on CPUs to a core of its own; return their numbers.

    Nothing is bound outside Linux, where the environment says nobind, or where there are not as
    many threads as this process may use cores.

    Raises:
        ValueError: the variable has another value than auto or nobind.
    """
    chosen = os.environ.get(VARIABLE, "auto")
    if chosen not in ("auto", "nobind"):
        raise ValueError(
            f"{VARIABLE}={chosen}: specjax knows auto and nobind; `taskset -c {chosen}` before the "
            "command chooses its cores"
        )
    tasks = Path("/proc/self/task")
    if chosen == "nobind" or not tasks.is_dir():
        return []
    jax.local_devices(backend="cpu")  # starts the pool
    threads = sorted(
        int(one.name) for one in tasks.iterdir() if (one / "comm").read_text().strip() == POOL
    )
    cores = sorted(os.sched_getaffinity(0))
    if len(threads) != len(cores):
        return []
    for thread, core in zip(threads, cores, strict=True):
        os.sched_setaffinity(thread, {core})
    return threads
