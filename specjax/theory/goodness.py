"""Chi-square tests of counts, total variation of samples, and how many samples to draw."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import default_rng
from scipy import stats

from specjax.theory.arrays import Real, Scalar, Value, require, require_distributions

LEAST_EXPECTED = 5.0  # cells expected less often are merged (Cochran 1954)
ALPHA = 0.01  # level of the audits' tests


class GoodnessOfFit(NamedTuple):
    """A test statistic, its number of cells, and its p-value."""

    statistic: float
    num_cells: int
    p_value: float


def distribution_test(
    counts: Real, p: Real, method: str = "chi2", seed: int = 0, num_draws: Scalar = 2000
) -> GoodnessOfFit:
    """Return the test of counts [V] against a distribution p [V].

    "chi2": Pearson 1900; "g": 2 sum O ln(O / E), Wilks 1938; both after merging cells expected
    less than 5 times, against chi-square with cells - 1 degrees of freedom. "tv": the total
    variation distance of the shares from p, its p-value from ``num_draws`` multinomial samples of
    p (never 0). A count where p = 0 refutes the distribution: p-value 0.
    Raises ValueError for negative or no counts, a p that is no distribution, or another method.
    """
    require_distributions(p=p)
    require("counts", counts, 0)
    counts, p = np.asarray(counts, np.float64), np.asarray(p, np.float64)
    n = counts.sum()
    require("the number of draws", n, 1)
    p = p / p.sum()
    if method not in ("chi2", "g", "tv"):
        raise ValueError(f"method must be 'chi2', 'g' or 'tv', got {method!r}")
    if counts[p == 0].any():
        return GoodnessOfFit(np.inf, int((p > 0).sum()), 0.0)
    if method == "tv":
        seen = np.abs(counts / n - p).sum() / 2
        draws = default_rng(seed).multinomial(int(n), p, num_draws) / n
        larger = (np.abs(draws - p).sum(axis=1) / 2 >= seen - 1e-12).sum()
        return GoodnessOfFit(float(seen), int((p > 0).sum()), float((larger + 1) / (num_draws + 1)))
    observed, expected = merge(counts, n * p)
    if len(expected) < 2:
        return GoodnessOfFit(0.0, len(expected), 1.0)
    if method == "chi2":
        statistic = pearson(observed, expected)
    else:
        drawn = observed > 0
        statistic = 2 * (observed[drawn] * np.log(observed[drawn] / expected[drawn])).sum()
    p_value = float(stats.chi2.sf(statistic, len(expected) - 1))
    return GoodnessOfFit(float(statistic), len(expected), p_value)


def merge(observed: Value, expected: Value) -> tuple[Value, Value]:
    """Return both with the rarest cells pooled until each is expected ``LEAST_EXPECTED`` times."""
    order = np.argsort(expected)
    observed, expected = observed[order], expected[order]
    rare = int((expected < LEAST_EXPECTED).sum())
    while 0 < rare < len(expected) and expected[:rare].sum() < LEAST_EXPECTED:
        rare += 1
    if rare < 2:
        return observed, expected
    pooled = [np.concatenate([[x[:rare].sum()], x[rare:]]) for x in (observed, expected)]
    return pooled[0], pooled[1]


def pearson(observed: Value, expected: Value) -> float:
    """Return Pearson's statistic, the sum of (observed - expected)^2 / expected."""
    return float(((observed - expected) ** 2 / expected).sum())


def homogeneity_p_value(table: np.ndarray) -> float:
    """Return the p-value of Pearson's test that two samples' counts [cells, 2] are alike."""
    if len(table) < 2:
        return 1.0
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    return float(stats.chi2.sf(pearson(table, expected), len(table) - 1))


def expected_p_value(table: np.ndarray) -> float:
    """Return the p-value of Pearson's chi-square test of observed, expected counts [cells, 2]."""
    if len(table) < 2:
        return 1.0
    observed, expected = table.T
    expected = expected * (observed.sum() / expected.sum())
    return float(stats.chi2.sf(pearson(observed, expected), len(table) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for their number (Holm 1979), in their order."""
    order, worst = np.argsort(p_values), 0.0
    adjusted = np.zeros(len(p_values))
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted.tolist()


def samples_for_chi2(p0: Real, p1: Real, level: Scalar = 0.05, power: Scalar = 0.9) -> int:
    """Return how many draws a chi-square test needs to distinguish p1 from p0 with this power.

    Under p1 the statistic is noncentral chi-square with noncentrality n sum (p1 - p0)^2 / p0 and
    V - 1 degrees of freedom (Cohen 1988). p0, p1 [V]. Raises ValueError for rows that are no
    distributions, equal ones, p0 = 0 < p1 (one draw tells), or level, power outside (0, 1).
    """
    require_distributions(p0=p0, p1=p1)
    require("level", level, 1e-300, 1 - 1e-12)
    require("power", power, level, 1 - 1e-12)
    p0, p1 = np.asarray(p0, np.float64), np.asarray(p1, np.float64)
    if ((p0 == 0) & (p1 > 0)).any():
        raise ValueError("p1 draws tokens that p0 never does: a single one tells them apart")
    alive = p0 > 0
    effect = ((p1[alive] - p0[alive]) ** 2 / p0[alive]).sum()
    require("the difference of the distributions", effect, 1e-300)
    return draws_for_power(effect, int(alive.sum()), level, power)


def samples_to_detect_tv(
    num_cells: int, tv: float, power: float, level: float = ALPHA, *, samples: int = 2
) -> int:
    """Return the draws per sample that detect a total variation ``tv`` with this power.

    With two samples of n draws the noncentrality is n/2 times the sum of d^2/m, d the
    difference and m the mean of the distributions; since the |d| sum to 2 tv, it is at least
    2 n tv^2 (Cauchy-Schwarz). With one sample and a known distribution it is at least 4 n tv^2.
    """
    return draws_for_power(4 / samples * tv**2, num_cells, level, power)


def draws_for_power(effect: float, num_cells: int, level: Scalar, power: Scalar) -> int:
    """Return the least n at which a chi-square test of noncentrality n ``effect`` has the power."""
    critical = stats.chi2.isf(level, num_cells - 1)

    def enough(n: int) -> bool:
        return bool(stats.ncx2.sf(critical, num_cells - 1, n * effect) >= power)

    high = 1
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def samples_for_tv(k: Scalar, eps: Scalar, delta: Scalar) -> int:
    """Return ceil(2 (k ln 2 - ln delta) / eps^2), the draws that estimate k probabilities to eps.

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

    By the normal approximation of the multinomial (de Moivre 1733): E|Z| = sqrt(2 / pi).
    E|X - np| of a binomial is 2 m (1 - p) P(X = m), m = floor(np) + 1 (De Moivre 1730): exact.
    About sum sqrt(p (1 - p) / (2 pi n)). A measured TV says nothing until compared with it.
    Raises ValueError for rows that are no distributions or n < 1.
    """
    require_distributions(p=p)
    require("n", n, 1)
    p = np.asarray(p, np.float64)
    m = np.minimum(np.floor(n * p) + 1, n)
    deviation = 2 * m * (1 - p) * stats.binom.pmf(m, n, p)
    return deviation.sum(axis=-1) / (2 * n)


def total_variation(table: np.ndarray) -> float:
    """Return the total variation distance between the shares of two columns [cells, 2]."""
    shares = table / table.sum(axis=0)
    return float(abs(shares[:, 0] - shares[:, 1]).sum() / 2)


def expected_variation(table: np.ndarray, *, samples: int = 2) -> float:
    """Return the mean ``total_variation`` of samples from one distribution, from sampling noise.

    With one sample the second column is expected counts. Every cell's difference is nearly normal
    with variance m (1 - m) (1 / n + 1 / n'); ``null_expected_tv`` is exact, for one sample.
    """
    num = table.sum(axis=0)
    mean = table.sum(axis=1) / num.sum() if samples == 2 else table[:, 1] / num[1]
    variance = mean * (1 - mean) * (1 / num[:samples]).sum()
    return float(np.sqrt(2 / np.pi * variance).sum() / 2)
