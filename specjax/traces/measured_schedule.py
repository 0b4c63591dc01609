"""K by batch size from measured rounds, and nothing beyond the batch sizes and K timed."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from specjax.theory.arrays import Scalar, require_costs


class Step(NamedTuple):
    """One timed round: how many rows, drafted tokens per row, and seconds."""

    batch_size: int
    k: int
    seconds: float


def measured_schedule(
    steps: Sequence[Step], tokens: Callable[[int], float], hysteresis: Scalar = 0.02
) -> list[list[int]] | None:
    """Return [[first, last, K], ...] from batch size 1 to the largest measured one, or None.

    At each batch size K has the greatest throughput, tokens(K) / seconds(K), among the K (0
    included: plain decoding) timed at every batch size; between two measured batch sizes seconds
    are interpolated. There is no fit, so nothing is said of a batch where verification may
    have become bound by compute. Measure batch sizes a factor of 1.5 apart or less (1, 2, 3, 4, 6,
    8, 12, ...): in simulated servers 0.4% of the loads then lose more than 2% against the better of
    plain decoding and the K in use; with powers of two 1.8%, at a bend between two of them.
    vLLM's ``num_speculative_tokens_per_batch_size`` reads the result.

    Args:
        steps: rounds by batch size and K; several of one kind count by their median.
        tokens: expected tokens per round at a K; tokens(0) is 1.
        hysteresis: K changes with the batch only for a larger relative gain than this.

    Returns:
        The ranges; None unless K = 0 and another K were timed at batch size 1 and a larger one.

    Raises:
        ValueError: hysteresis is negative.
    """
    require_costs(hysteresis=hysteresis)
    seconds: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for step in steps:
        seconds[step.batch_size][step.k].append(step.seconds)
    batches = sorted(seconds)
    depths = sorted(set.intersection(*(set(seconds[b]) for b in batches))) if batches else []
    if len(batches) < 2 or len(depths) < 2 or batches[0] != 1 or depths[0] != 0:
        return None
    sizes = np.arange(1, batches[-1] + 1)
    throughput = np.stack(
        [
            tokens(k)
            / np.interp(sizes, batches, [statistics.median(seconds[b][k]) for b in batches])
            for k in depths
        ],
        axis=1,
    )
    ranges: list[list[int]] = []
    now = -1
    for size, row in zip(sizes.tolist(), throughput, strict=True):
        best = int(row.argmax())
        if ranges and row[best] <= (1.0 + hysteresis) * row[now]:
            ranges[-1][1] = size
        else:
            now = best
            ranges.append([size, size, depths[best]])
    return ranges
