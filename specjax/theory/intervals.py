"""Intervals for measured acceptance.

Accepted tokens are not independent trials: a rejection ends the draft, and requests differ. The
binomial intervals are therefore too narrow for counters; the clustered one is not.
"""

from typing import NamedTuple

import numpy as np
from numpy.random import default_rng
from scipy import stats

from specjax.theory.arrays import Real, Scalar, Value, require, require_costs


class Interval(NamedTuple):
    """An estimate and its confidence interval."""

    estimate: Value
    low: Value
    high: Value


def acceptance_ci(k: Real, n: Real, method: str = "wilson", level: Scalar = 0.95) -> Interval:
    """Return k / n with a binomial interval: Wilson (1927) or Clopper & Pearson (1934).

    Right for independent trials only, such as "did position 1 accept" over requests; broadcasts.
    Wilson covers ``level`` on average, Clopper-Pearson at least. Raises ValueError unless
    0 <= k <= n, n >= 1 and 0 < level < 1, or for another method.
    """
    k, n = np.broadcast_arrays(np.asarray(k, np.float64), np.asarray(n, np.float64))
    require("n", n, 1)
    require("k", k, 0)
    require("n - k", n - k, 0)
    require("level", level, 1e-12, 1 - 1e-12)
    share = k / n
    if method == "wilson":
        z = stats.norm.ppf((1 + level) / 2)
        centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
        low, high = np.where(k == 0, 0.0, centre - half), np.where(k == n, 1.0, centre + half)
    elif method == "clopper":
        tail = (1 - level) / 2
        low = np.where(k > 0, stats.beta.ppf(tail, np.maximum(k, 1), n - k + 1), 0.0)
        high = np.where(k < n, stats.beta.ppf(1 - tail, k + 1, np.maximum(n - k, 1)), 1.0)
    else:
        raise ValueError(f"method must be 'wilson' or 'clopper', got {method!r}")
    return Interval(share[()], low[()], high[()])


def acceptance_ci_clustered(
    drafted: Real,
    accepted: Real,
    request: Real,
    method: str = "delta",
    level: Scalar = 0.95,
    seed: int = 0,
    num_resamples: int = 2000,
) -> Interval:
    """Return accepted / drafted with an interval whose unit is the request.

    ``drafted``, ``accepted``, ``request`` [steps]: counts of each step and whose it was. "delta":
    the ratio estimator's linearised variance over requests with Student's t (Cochran 1977, ch. 6);
    "bootstrap": requests drawn with replacement, percentiles, from ``seed`` (Efron 1979).
    Raises ValueError for fewer than two requests, accepted > drafted, or nothing drafted.
    """
    drafted, accepted = np.asarray(drafted, np.float64), np.asarray(accepted, np.float64)
    require_costs(drafted=drafted, accepted=accepted)
    require("drafted - accepted", drafted - accepted, 0)
    require("level", level, 1e-12, 1 - 1e-12)
    _, index = np.unique(np.asarray(request), return_inverse=True)
    d, a = np.bincount(index, drafted), np.bincount(index, accepted)
    size = len(d)
    require("the number of requests", size, 2)
    require("the number of drafted tokens", d.sum(), 1)
    ratio = a.sum() / d.sum()
    if method == "delta":
        spread = np.sqrt(size / (size - 1) * ((a - ratio * d) ** 2).sum()) / d.sum()
        half = stats.t.ppf((1 + level) / 2, size - 1) * spread
        return Interval(ratio, max(ratio - half, 0.0), min(ratio + half, 1.0))
    if method == "bootstrap":
        draws = default_rng(seed).integers(0, size, (num_resamples, size))
        totals = d[draws].sum(axis=1)
        ratios = a[draws].sum(axis=1)[totals > 0] / totals[totals > 0]
        low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
        return Interval(ratio, float(low), float(high))
    raise ValueError(f"method must be 'delta' or 'bootstrap', got {method!r}")
