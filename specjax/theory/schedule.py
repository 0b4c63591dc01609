"""The best K by batch size: goodput of a step whose cost grows with the tokens it verifies.

TurboSpec (Liu et al. 2024, arXiv 2406.14066; SmartSpec in its first version). A step of B requests
takes t0 + t1 B (K + 1) + td K seconds: fixed, per verified token, per level of drafting.
"""

import numpy as np

from specjax.theory.arrays import Real, Scalar, Value, arrays, require, require_costs
from specjax.theory.lengths import tokens_per_step


def goodput(B: Real, alpha: Real, K: Real, t0: Real, t1: Real, td: Real) -> Value:
    """Return B G / (t0 + t1 B (K + 1) + td K), tokens per second of a batch of B requests.

    Liu et al. 2024 (arXiv 2406.14066), with a linear cost.
    TurboSpec. Times in seconds; broadcasts; differentiable. Raises ValueError for
    alpha outside [0, 1], K < 0, B < 0 or a negative time.
    """
    require_costs(B=B, t0=t0, t1=t1, td=td)
    tokens = tokens_per_step(alpha, K)
    _, B, K, tokens, t0, t1, td = arrays(B, K, tokens, t0, t1, td)
    return (B * tokens / (t0 + t1 * B * (K + 1.0) + td * K))[()]


def optimal_k_goodput(
    B: Real, alpha: Real, t0: Real, t1: Real, td: Real, k_max: Scalar = 16
) -> Value:
    """Return the K in 0 .. k_max of the greatest goodput for each batch size, the least if tied.

    Liu et al. 2024 (arXiv 2406.14066).
    Raises ValueError as ``goodput`` does.
    """
    require("k_max", k_max, 0)
    _, *aligned = arrays(*(np.asarray(one)[..., None] for one in (B, alpha, t0, t1, td)))
    B, alpha, t0, t1, td = aligned
    return goodput(B, alpha, np.arange(k_max + 1), t0, t1, td).argmax(axis=-1)[()]


def num_speculative_tokens_per_batch_size(
    alpha: Scalar,
    t0: Scalar,
    t1: Scalar,
    td: Scalar,
    k_max: Scalar = 16,
    max_batch: Scalar = 256,
    hysteresis: Scalar = 0.02,
) -> list[list[int]]:
    """Return K by batch size as [[first, last, K], ...], for vLLM's option of the same name.

    The best K of Liu et al. 2024 (arXiv 2406.14066), batch by batch.
    ``json.dumps`` of the result goes into ``--speculative-config``. The ranges cover
    1 .. ``max_batch``; K changes only where that gains more than ``hysteresis`` of the goodput,
    so that a batch at the border of two ranges does not flap and the ranges are few. K falls
    with the batch; 0 switches speculation off. Raises ValueError as ``goodput`` does, for
    max_batch < 1 or a negative hysteresis.
    """
    require("max_batch", max_batch, 1)
    require_costs(hysteresis=hysteresis)
    batch = np.arange(1, max_batch + 1)
    best = optimal_k_goodput(batch, alpha, t0, t1, td, k_max)
    chosen = goodput(batch[:, None], alpha, np.arange(k_max + 1), t0, t1, td)
    ranges: list[list[int]] = []
    for size, k, row in zip(batch.tolist(), best.tolist(), chosen, strict=True):
        if ranges and row[k] <= (1.0 + hysteresis) * row[ranges[-1][2]]:
            ranges[-1][1] = size
        else:
            ranges.append([size, size, k])
    return ranges
