"""The memory read bandwidth of this machine."""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from specjax.bench.report import num_cores

NUM_BYTES = 2**29  # beyond any cache


def read_bandwidth(reps: int = 5) -> float:
    """Return bytes per second: the median of reading a large array in parallel on all cores."""
    parts = np.array_split(np.ones(NUM_BYTES // 4, np.float32), num_cores())
    seconds = []
    with ThreadPoolExecutor(len(parts)) as pool:
        for _ in range(reps + 1):
            start = time.perf_counter()
            list(pool.map(np.max, parts))  # np.max reads faster than np.sum, and leaves Python
            seconds.append(time.perf_counter() - start)
    return NUM_BYTES / statistics.median(seconds[1:])
