"""Wall-clock speedup: tokens per step over the cost of a step, and the best K.

Leviathan, Kalman & Matias 2023 (arXiv 2211.17192). All costs are in units of one plain target step
(one token per row): c for a step of the draft, v for verifying the block of K + 1 tokens, h for the
overhead. Speedups are ratios to plain decoding; 1 is no gain.
"""

from collections.abc import Callable

import numpy as np

from specjax.theory.arrays import Real, Scalar, Value, arrays, require, require_costs, require_probs
from specjax.theory.lengths import geometric_sum, increasing_root, steps_to_emit, tokens_per_step

TIE = 1e-13  # speedups this near are equal: alpha = c gains nothing at any K


def speedup(alpha: Real, K: Real, c: Real, v: Real = 1.0, overhead: Real = 0.0) -> Value:
    """Return G(alpha, K) / (K c + v + h), the expected wall-clock speedup [ratio].

    Leviathan et al. 2023 (arXiv 2211.17192), Thm 3.8, where v = 1 and h = 0; v, the cost of the
    block relative to one token, as in Sequoia (Chen et al. 2024, arXiv 2402.12374) and MagicDec
    (Sadhukhan et al. 2024, arXiv 2408.11049). Shapes broadcast; differentiable. Raises ValueError
    for alpha outside [0, 1], K < 0, a negative cost or a round that costs nothing.

    >>> round(float(speedup(alpha=0.8, K=4, c=0.1)), 3)
    2.401
    """
    require_costs(c=c, v=v, overhead=overhead)
    tokens = tokens_per_step(alpha, K)
    _, tokens, K, c, v, overhead = arrays(tokens, K, c, v, overhead)
    cost = K * c + v + overhead
    require("K c + v + overhead, the cost of a round,", cost, np.finfo(np.float64).tiny)
    return (tokens / cost)[()]


def guaranteed_speedup(alpha: Real, c: Real) -> Value:
    """Return (1 + alpha) / (1 + c) where alpha > c, else 1: a lower bound on the best speedup.

    Leviathan et al. 2023 (arXiv 2211.17192), Cor. 3.9: some K improves if and only if alpha > c.
    Raises ValueError for alpha outside [0, 1] or c < 0.

    >>> round(float(guaranteed_speedup(alpha=0.8, c=0.1)), 3)
    1.636
    """
    require_probs(alpha=alpha)
    require_costs(c=c)
    xp, alpha, c = arrays(alpha, c)
    return xp.where(alpha > c, (1.0 + alpha) / (1.0 + c), 1.0)[()]


def staged_draft_cost(
    n: Real, alpha: Real, K: Real, c: Real, draft_c: Real, v: Real = 1.0
) -> Value:
    """Return the cost of a draft token where the draft model is itself drafted for.

    Staged speculative decoding (Spector & Re 2023, arXiv 2308.04623; cascades: Chen et al. 2023,
    arXiv 2312.11462): the draft model emits its n tokens in rounds of its own, of which it takes
    ``steps_to_emit``, and a round costs K c + v of its steps. As the c of ``speedup`` it gives the
    speedup of two levels. NumPy only.

    Args:
        n: tokens of the outer draft, its K.
        alpha: chance that the draft model accepts a token of its own draft.
        K: tokens drafted for the draft model in an inner round.
        c: a step of the inner draft, in steps of the draft model.
        draft_c: a step of the draft model, in plain target steps.
        v: a pass of the draft model over K + 1 tokens, over one of 1.

    Raises:
        ValueError: alpha is outside [0, 1], n < 1, K < 0 or a cost is negative.

    >>> round(float(staged_draft_cost(n=5, alpha=0.8, K=3, c=0.05, draft_c=0.2)), 4)
    0.1016
    """
    require("n", n, 1)
    require_costs(c=c, draft_c=draft_c, v=v)
    rounds = steps_to_emit(n, alpha, K)
    return (rounds * (np.asarray(K) * c + v) * draft_c / n)[()]


def ops_factor(alpha: Real, K: Real, c_hat: Real) -> Value:
    """Return (1 - a)(K c^ + K + 1) / (1 - a^(K+1)): operations per token, over plain decoding's.

    Leviathan et al. 2023 (arXiv 2211.17192), Thm 3.11; c^ is the draft's operations per token over
    the target's. Raises ValueError for alpha outside [0, 1], K < 0 or c_hat < 0.
    """
    require_costs(c_hat=c_hat)
    tokens = tokens_per_step(alpha, K)
    _, tokens, K, c_hat = arrays(tokens, K, c_hat)
    return ((K * c_hat + K + 1.0) / tokens)[()]


def oracle_speedup(alpha: Real, c: Real = 0.0) -> Value:
    """Return 1 / (1 - alpha + c alpha): the speedup if K were known beforehand at every step.

    Leviathan et al. 2023 (arXiv 2211.17192), sec. 3.5, where drafting is free and it is 1 / (1 -
    alpha): an oracle drafts exactly the a / (1 - a) tokens that will be accepted. Infinite at alpha
    = 1, c = 0. Raises ValueError for alpha outside [0, 1] or c < 0.

    >>> round(float(oracle_speedup(alpha=0.8)), 3)
    5.0
    """
    require_probs(alpha=alpha)
    require_costs(c=c)
    xp, alpha, c = arrays(alpha, c)
    cost = 1.0 - alpha + c * alpha
    return xp.where(cost > 0, 1.0 / xp.where(cost > 0, cost, 1.0), xp.inf)[()]


def optimal_k(
    alpha: Real, c: Real, v: Callable[[Value], Value] | Real = 1.0, k_max: Scalar = 1024
) -> Value:
    """Return the smallest K in 0 .. k_max with the greatest speedup G / (K c + v).

    The greatest value of Leviathan et al. 2023 (arXiv 2211.17192), Thm 3.8.
    ``v`` is a number or a function of the integers K, the cost of verifying K + 1 tokens relative
    to one; K = 0 costs 1. With v = 1 it is the smallest K with a^(K+1) (1 + c K) <= c G(K): one
    more draft token must bring the speedup it costs. ``k_max`` where the best is larger. Integers
    of the broadcast shape; NumPy only.
    Raises ValueError for alpha outside [0, 1], a negative cost or k_max < 0.

    >>> int(optimal_k(alpha=0.8, c=0.1))
    6
    """
    require_probs(alpha=alpha)
    require_costs(c=c)
    require("k_max", k_max, 0)
    K = np.arange(k_max + 1)
    block = np.asarray(v(K) if callable(v) else v, np.float64)
    require_costs(v=block)
    block = np.where(K > 0, block, 1.0)
    alpha, c = np.asarray(alpha, np.float64)[..., None], np.asarray(c, np.float64)[..., None]
    gain = geometric_sum(np, alpha, K + 1.0) / (K * c + block)
    most = gain.max(axis=-1, keepdims=True)
    return (gain >= most * (1.0 - TIE)).argmax(axis=-1)[()]


def optimal_k_real(alpha: Real, c: Real) -> Value:
    """Return the real K that maximises G / (K c + 1), clipped at 0; the integer K* is beside it.

    Thm 3.8 of Leviathan et al. 2023 (arXiv 2211.17192), differentiated; ours.
    With L = -ln alpha and A = L (1 - c) / c, the stationary point is K = (y - 1 - A) / L - 1
    where y = -W_{-1}(-e^{-(1+A)}), Lambert's lower branch. Found by Newton's method on
    y - ln y = 1 + A, since the exponential underflows for A > 700. Infinite for c = 0 < alpha,
    or alpha = 1 > c. NumPy only. Raises ValueError for alpha outside [0, 1] or c < 0.
    """
    require_probs(alpha=alpha)
    require_costs(c=c)
    _, alpha, c = np.broadcast_arrays(0.0, *arrays(np.asarray(alpha), np.asarray(c))[1:])
    inside = (alpha > 0) & (alpha < 1) & (c > 0) & (c < 1)
    L = -np.log(np.where(inside, alpha, 0.5))
    cost = np.where(inside, c, 0.5)
    A = L * (1.0 - cost) / cost
    y = 1.0 + A + np.sqrt(2.0 * A) + np.log1p(A)
    for _ in range(50):
        y = y - (y - np.log(y) - 1.0 - A) * y / (y - 1.0)
    endless = ((c == 0) & (alpha > 0)) | ((alpha == 1) & (c < 1))
    outside = np.where(endless, np.inf, 0.0)
    return np.where(inside, np.maximum((y - 1.0 - A) / L - 1.0, 0.0), outside)[()]


def breakeven_alpha(K: Real, c: Real, v: Real = 1.0) -> Value:
    """Return the alpha above which speculation pays, where G(alpha, K) = K c + v.

    Where Thm 3.8 of Leviathan et al. 2023 (arXiv 2211.17192) is 1.
    0 where it always pays, NaN where it never can (K c + v > K + 1). For K = 1, v = 1 it is c.
    NumPy only. Raises ValueError for K < 0 or a negative cost.

    >>> round(float(breakeven_alpha(K=1, c=0.3)), 3)
    0.3
    """
    require("K", K, 0)
    require_costs(c=c, v=v)
    _, K, c, v = arrays(np.asarray(K), np.asarray(c), np.asarray(v))
    cost = K * c + v
    root = increasing_root(lambda alpha: geometric_sum(np, alpha, K + 1.0), cost)
    return np.where(cost > K + 1.0, np.nan, root)[()]
