"""Is a sample of this law? Tests of counts against probabilities, and how many to draw."""

from typing import NamedTuple

import numpy as np
from numpy.random import default_rng
from scipy import stats

from specjax.theory.arrays import Real, Scalar, Value, require, require_laws

LEAST_EXPECTED = 5.0  # cells expected less often are merged (Cochran 1954)


class LawTest(NamedTuple):
    """A statistic, the cells it was taken over, and how likely one as large is by chance."""

    statistic: float
    num_cells: int
    p_value: float


def distribution_test(
    counts: Real, p: Real, method: str = "chi2", seed: int = 0, num_draws: Scalar = 2000
) -> LawTest:
    """Test counts [V] against a law p [V].

    "chi2": Pearson 1900; "g": 2 sum O ln(O / E), Wilks 1938; both after merging cells expected
    less than 5 times, against chi-square with cells - 1 degrees of freedom. "tv": the total
    variation distance of the shares from p, its p-value from ``num_draws`` multinomial samples of
    p (never 0). A count where p = 0 refutes the law: p-value 0.
    Raises ValueError for negative or no counts, a p that is no law, or another method.
    """
    require_laws(p=p)
    require("counts", counts, 0)
    counts, p = np.asarray(counts, np.float64), np.asarray(p, np.float64)
    n = counts.sum()
    require("the number of draws", n, 1)
    p = p / p.sum()
    if method not in ("chi2", "g", "tv"):
        raise ValueError(f"method must be 'chi2', 'g' or 'tv', got {method!r}")
    if counts[p == 0].any():
        return LawTest(np.inf, int((p > 0).sum()), 0.0)
    if method == "tv":
        seen = np.abs(counts / n - p).sum() / 2
        draws = default_rng(seed).multinomial(int(n), p, num_draws) / n
        larger = (np.abs(draws - p).sum(axis=1) / 2 >= seen - 1e-12).sum()
        return LawTest(float(seen), int((p > 0).sum()), float((larger + 1) / (num_draws + 1)))
    observed, expected = merge(counts, n * p)
    if len(expected) < 2:
        return LawTest(0.0, len(expected), 1.0)
    if method == "chi2":
        statistic = ((observed - expected) ** 2 / expected).sum()
    else:
        drawn = observed > 0
        statistic = 2 * (observed[drawn] * np.log(observed[drawn] / expected[drawn])).sum()
    chance = stats.chi2.sf(statistic, len(expected) - 1)
    return LawTest(float(statistic), len(expected), float(chance))


def merge(observed, expected):
    """Pool the rarest cells until none is expected less than ``LEAST_EXPECTED`` times."""
    order = np.argsort(expected)
    observed, expected = observed[order], expected[order]
    rare = int((expected < LEAST_EXPECTED).sum())
    while 0 < rare < len(expected) and expected[:rare].sum() < LEAST_EXPECTED:
        rare += 1
    if rare < 2:
        return observed, expected
    pooled = [np.concatenate([[x[:rare].sum()], x[rare:]]) for x in (observed, expected)]
    return pooled[0], pooled[1]


def samples_for_chi2(p0: Real, p1: Real, level: Scalar = 0.05, power: Scalar = 0.9) -> int:
    """Return how many draws a chi-square test needs to tell p1 from p0 with this power.

    Under p1 the statistic is noncentral chi-square with noncentrality n sum (p1 - p0)^2 / p0 and
    V - 1 degrees of freedom (Cohen 1988). p0, p1 [V]. Raises ValueError for rows that are no
    laws, equal laws, p0 = 0 < p1 (one draw tells), or level, power outside (0, 1).
    """
    require_laws(p0=p0, p1=p1)
    require("level", level, 1e-300, 1 - 1e-12)
    require("power", power, level, 1 - 1e-12)
    p0, p1 = np.asarray(p0, np.float64), np.asarray(p1, np.float64)
    if ((p0 == 0) & (p1 > 0)).any():
        raise ValueError("p1 draws tokens that p0 never does: a single one tells them apart")
    alive = p0 > 0
    effect = ((p1[alive] - p0[alive]) ** 2 / p0[alive]).sum()
    require("the difference of the laws", effect, 1e-300)
    degrees = int(alive.sum()) - 1
    critical = stats.chi2.isf(level, degrees)

    def enough(n: int) -> bool:
        return bool(stats.ncx2.sf(critical, degrees, n * effect) >= power)

    high = 1
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def samples_for_tv(k: Scalar, eps: Scalar, delta: Scalar) -> int:
    """Return ceil(2 (k ln 2 - ln delta) / eps^2) draws, enough to see a law of k tokens closely.

    Weissman et al. 2003: P(sum |p^ - p| >= eps) <= 2^k e^(-n eps^2 / 2). So the L1 distance stays
    below eps with chance 1 - delta, and the total variation distance, half of it, below eps / 2:
    a safe number for TV < eps too, four times what that takes.
    Raises ValueError for k < 1, eps not positive or delta outside (0, 1].
    """
    require("k", k, 1)
    require("eps", eps, 1e-300)
    require("delta", delta, 1e-300, 1.0)
    return int(np.ceil(2 * (k * np.log(2) - np.log(delta)) / eps**2))


def null_expected_tv(p: Real, n: Scalar) -> Value:
    """Return the expected total variation distance of n draws of p [..., V] from p itself.

    E|X - np| of a binomial is 2 m (1 - p) P(X = m), m = floor(np) + 1 (De Moivre 1730): exact.
    About sum sqrt(p (1 - p) / (2 pi n)). A measured TV says nothing until compared with it.
    Raises ValueError for rows that are no laws or n < 1.
    """
    require_laws(p=p)
    require("n", n, 1)
    p = np.asarray(p, np.float64)
    m = np.minimum(np.floor(n * p) + 1, n)
    deviation = 2 * m * (1 - p) * stats.binom.pmf(m, n, p)
    return deviation.sum(axis=-1) / (2 * n)
