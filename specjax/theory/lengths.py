"""Tokens per step when each draft token is accepted with probability alpha.

Leviathan, Kalman & Matias 2023 (arXiv 2211.17192), "Fast Inference from Transformers via
Speculative Decoding". K tokens are drafted, a prefix of them is accepted, and the target adds one
of its own: the length of a step is geometric, capped at K + 1. "Tokens" counts the target's own
token, "accepted" does not. Unit of all lengths: tokens per step of one request.
"""

from collections.abc import Callable
from types import ModuleType

import numpy as np
from scipy.signal import lfilter

from specjax.theory.arrays import (
    Real,
    Scalar,
    Value,
    arrays,
    library_of,
    require,
    require_distributions,
    require_numpy,
    require_probs,
)


def tokens_per_step(alpha: Real, K: Real) -> Value:
    """Return G = sum_{i=0..K} alpha^i = (1 - alpha^(K+1)) / (1 - alpha), the tokens per step.

    Leviathan et al. 2023 (arXiv 2211.17192), Eq. 1. Also called tau, block efficiency, and vLLM's
    mean acceptance length. K >= 0, real values allowed; shapes broadcast; differentiable in both.
    Raises ValueError for alpha outside [0, 1] or K < 0.

    >>> round(float(tokens_per_step(alpha=0.8, K=4)), 4)
    3.3616
    """
    require_probs(alpha=alpha)
    require("K", K, 0)
    xp, alpha, K = arrays(alpha, K)
    return geometric_sum(xp, alpha, K + 1)


def accepted_per_step(alpha: Real, K: Real) -> Value:
    """Return the expected accepted draft tokens per step, sum_{i=1..K} alpha^i = G - 1.

    Leviathan et al. 2023 (arXiv 2211.17192), Eq. 1, less one. Tends to alpha / (1 - alpha) as K
    grows, which is too large by the factor 1 / (1 - alpha^K). Raises as ``tokens_per_step`` does.
    """
    require_probs(alpha=alpha)
    require("K", K, 0)
    xp, alpha, K = arrays(alpha, K)
    return alpha * geometric_sum(xp, alpha, K)


def geometric_sum(xp: ModuleType, alpha: Value, n: Value) -> Value:
    """Return the sum of alpha^i for i < n without cancellation: n at alpha = 1, and smooth there.

    Up to 1/2 the closed form is accurate. Above, with L = ln alpha, it is
    n * phi(n L) / phi(L) where phi(x) = (e^x - 1) / x; nothing there is 0 / 0 but phi(0) = 1.
    """
    small = alpha <= 0.5
    low, high = xp.where(small, alpha, 0.0), xp.where(small, 1.0, alpha)
    log = xp.log(high)
    closed = (1.0 - low**n) / (1.0 - low)
    return xp.where(small, closed, n * phi(xp, n * log) / phi(xp, log))[()]


def phi(xp: ModuleType, x: Value) -> Value:
    """Return (e^x - 1) / x, by its series near 0, where it is 1."""
    near = xp.abs(x) < 1e-3
    away, close = xp.where(near, 1.0, x), xp.where(near, x, 0.0)
    series = 1.0 + close / 2 * (1.0 + close / 3 * (1.0 + close / 4 * (1.0 + close / 5)))
    return xp.where(near, series, xp.expm1(away) / away)


def step_length_pmf(alpha: Real, K: Scalar) -> Value:
    """Return P(length = 1 .. K + 1) of a step [..., K + 1]: alpha^(l-1) (1 - alpha), capped.

    Leviathan et al. 2023 (arXiv 2211.17192), sec. 3.1: the last entry is alpha^K. Its mean is
    ``tokens_per_step``. Raises ValueError for alpha outside [0, 1] or K < 0.

    >>> step_length_pmf(alpha=0.5, K=2).tolist()
    [0.5, 0.25, 0.25]
    """
    require_probs(alpha=alpha)
    require("K", K, 0)
    xp, alpha = arrays(alpha)
    alpha = alpha[..., None]
    reached = alpha ** xp.arange(int(K) + 1).reshape((1,) * (alpha.ndim - 1) + (-1,))
    return xp.concatenate([reached[..., :-1] * (1.0 - alpha), reached[..., -1:]], axis=-1)


def step_length_var(alpha: Real, K: Real) -> Value:
    """Return the variance of a step's length [tokens^2]: sum_{i=0..K} (2i + 1) alpha^i - G^2.

    From P(length > i) = alpha^i (Leviathan et al. 2023, arXiv 2211.17192, sec. 3.1). K must be
    concrete integers.
    """
    tokens = tokens_per_step(alpha, K)
    xp, alpha, K = arrays(alpha, K)
    i = xp.arange(int(np.max(np.asarray(K))) + 1).reshape((1,) * K.ndim + (-1,))
    squares = xp.where(i <= K[..., None], (2 * i + 1) * alpha[..., None] ** i, 0.0)
    return squares.sum(axis=-1) - tokens**2


def draft_acceptance_ratio(alpha: Real, K: Real) -> Value:
    """Return (G - 1) / K, accepted per drafted token: vLLM's ``acceptance_rate``, not alpha.

    From Leviathan et al. 2023 (arXiv 2211.17192), Eq. 1; the name is that of vLLM's metric.
    The two differ because tokens after the first rejection count as drafted. Ratio in [0, 1].
    Raises ValueError for alpha outside [0, 1] or K < 1 (nothing drafted has no ratio).
    """
    require("K", K, 1)
    accepted = accepted_per_step(alpha, K)
    _, accepted, K = arrays(accepted, K)
    return (accepted / K)[()]


def alpha_from_ratio(r: Real, K: Real) -> Value:
    """Return the alpha at which draft_acceptance_ratio(alpha, K) = r. NumPy only: no gradient.

    The inverse of Eq. 1 of Leviathan et al. 2023 (arXiv 2211.17192), divided by K.
    Raises ValueError for r outside [0, 1] or K < 1, TypeError under a JAX transformation.
    """
    require_numpy(r=r, K=K)
    require_probs(r=r)
    require("K", K, 1)
    _, r, K = arrays(np.asarray(r), np.asarray(K))
    return increasing_root(lambda alpha: alpha * geometric_sum(np, alpha, K), r * K)


def alpha_from_length(L: Real, K: Real) -> Value:
    """Return the alpha at which tokens_per_step(alpha, K) = L, a mean acceptance length.

    The inverse of Eq. 1 of Leviathan et al. 2023 (arXiv 2211.17192).
    L counts the bonus token: 1 <= L <= K + 1. NumPy only: no gradient. Raises ValueError
    otherwise, or for K < 1, TypeError under a JAX transformation.

    >>> round(float(alpha_from_length(3.3616, K=4)), 3)
    0.8
    """
    require_numpy(L=L, K=K)
    require("K", K, 1)
    require("L", L, 1)
    _, L, K = arrays(np.asarray(L), np.asarray(K))
    if (L > K + 1).any():
        longest = (L - K).argmax()
        length, depth = np.broadcast_arrays(L, K)
        raise ValueError(
            f"L must be at most K + 1 = {depth.flat[longest] + 1:g}, the bonus token counted, got "
            f"{length.flat[longest]:g}"
        )
    return increasing_root(lambda alpha: geometric_sum(np, alpha, K + 1), L)


def increasing_root(rising: Callable[[Value], Value], goal: Value, bits: int = 60) -> Value:
    """Return the x in [0, 1] where an increasing function meets the goal; exact at 0 and 1.

    0 where even rising(0) exceeds the goal, 1 where rising(1) falls short.
    """
    low = np.zeros(np.broadcast_shapes(np.shape(goal), np.shape(rising(np.float64(0)))))
    high = np.ones_like(low)
    for _ in range(bits):
        middle = (low + high) / 2
        short = rising(middle) < goal
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    ends = np.where(rising(np.zeros_like(low)) >= goal, 0.0, (low + high) / 2)
    return np.where(rising(np.ones_like(low)) <= goal, 1.0, ends)[()]


def tokens_from_ratio(mean_drafted: Real, ratio: Real) -> Value:
    """Return 1 + d r, the tokens per step from d drafted tokens with acceptance rate r.

    By counting; it holds for any text and any dependence between positions.
    An identity of counters, whatever the drafter does; with an adaptive draft length d is far
    below the configured K. d in tokens per step, the result too.
    Raises ValueError for d < 0 or r outside [0, 1].
    """
    require("mean_drafted", mean_drafted, 0)
    require_probs(ratio=ratio)
    _, mean_drafted, ratio = arrays(mean_drafted, ratio)
    return (1.0 + mean_drafted * ratio)[()]


def tokens_adaptive(len_pmf: Real, alpha: Real) -> Value:
    """Return sum_L P(L) G(alpha, L), the tokens per step when the draft length L is random.

    The mean of Eq. 1 of Leviathan et al. 2023 (arXiv 2211.17192) over L.
    ``len_pmf`` [..., K + 1] holds P(L = 0 .. K), independent of acceptance; ``alpha`` [...].
    Raises ValueError if a row does not sum to 1 or alpha leaves [0, 1].
    """
    require_distributions(len_pmf=len_pmf)
    require_probs(alpha=alpha)
    xp = library_of(len_pmf, alpha)
    xp, len_pmf, alpha = arrays(len_pmf, xp.asarray(alpha)[..., None])
    lengths = xp.arange(len_pmf.shape[-1]).reshape((1,) * (len_pmf.ndim - 1) + (-1,))
    return (len_pmf * geometric_sum(xp, alpha, lengths + 1.0)).sum(axis=-1)


def steps_to_emit(n: Real, alpha: Real, K: Real) -> Value:
    """Return s(n), the expected steps to emit n tokens, the last step's overshoot discarded.

    The renewal equation (Feller 1968, XIII.4) of the lengths of Leviathan et al. 2023 (arXiv
    2211.17192), Eq. 1.
    Renewal recursion s(m) = 1 + sum_l P(length = l) s(m - l), s(m <= 0) = 0, which is a linear
    filter of ones. More than n / G, since the last step is cut. Shapes broadcast; NumPy only.
    Raises ValueError for alpha outside [0, 1], or n or K < 0.
    """
    require("n", n, 0)
    require_probs(alpha=alpha)
    require("K", K, 0)

    def one(n, alpha, K):
        pmf = step_length_pmf(float(alpha), int(K))
        return lfilter([1.0], np.concatenate([[1.0], -pmf]), np.ones(int(n)))[-1] if n else 0.0

    return np.vectorize(one, otypes=[np.float64])(n, alpha, K)[()]


def tokens_from_positions(
    *, conditional: Real | None = None, marginal: Real | None = None
) -> Value:
    """Return the tokens per step: 1 + sum of the marginals, or of cumprod of the conditionals.

    By linearity of expectation; no independence is needed.
    ``marginal`` [..., K]: share of drafts that accepted more than i tokens, which is vLLM's
    per-position rate; ``conditional`` [..., K]: chance at i given that all before were accepted.
    Give exactly one of the two. Raises ValueError otherwise, or outside [0, 1].
    """
    if marginal is not None and conditional is None:
        require_probs(marginal=marginal)
        _, rates = arrays(marginal)
        return 1.0 + rates.sum(axis=-1)
    if conditional is not None and marginal is None:
        require_probs(conditional=conditional)
        xp, rates = arrays(conditional)
        return 1.0 + xp.cumprod(rates, axis=-1).sum(axis=-1)
    raise ValueError("give either conditional= or marginal=, not both and not neither")


def marginal_to_conditional(marginal: Real) -> Value:
    """Return c_i = m_i / m_{i-1}, m_{-1} = 1 [..., K]; 0 where nothing reached position i.

    By the definition of conditional probability.
    Raises ValueError outside [0, 1], or where a marginal exceeds the one before it.

    >>> marginal_to_conditional([0.8, 0.4]).tolist()
    [0.8, 0.5]
    """
    require_probs(marginal=marginal)
    xp, marginal = arrays(marginal)
    before = xp.concatenate([xp.ones_like(marginal[..., :1]), marginal[..., :-1]], axis=-1)
    require("marginal's fall from one position to the next", before - marginal, 0)
    reached = before > 0
    return xp.where(reached, marginal / xp.where(reached, before, 1.0), 0.0)
