"""Intervals cover as often as they say, tests reject as often, and sample sizes suffice."""

import itertools
from math import comb

import numpy as np
import pytest

from specjax import theory

LAW = np.array([0.4, 0.3, 0.2, 0.06, 0.03, 0.01])


def coverage(method, n, share):
    """Sum the chances of the counts whose interval covers the true share."""
    k = np.arange(n + 1)
    chance = np.array([comb(n, i) * share**i * (1 - share) ** (n - i) for i in k])
    _, low, high = theory.acceptance_ci(k, n, method)
    return chance[(low <= share) & (share <= high)].sum()


def test_clopper_pearson_always_covers_and_wilson_does_on_average():
    shares = np.linspace(0.02, 0.98, 49)
    clopper = [coverage("clopper", 30, share) for share in shares]
    wilson = [coverage("wilson", 30, share) for share in shares]
    assert min(clopper) >= 0.95
    assert abs(np.mean(wilson) - 0.95) < 0.01
    assert theory.acceptance_ci(0, 30).low == 0
    assert theory.acceptance_ci([0, 30], 30, "clopper").high[1] == 1


def runs(rng, num_requests, steps=20, K=4):
    """Draw counters of requests whose alphas differ: (drafted, accepted, request)."""
    alpha = rng.choice([0.2, 0.9], num_requests)[:, None, None]
    accepted = (rng.random((num_requests, steps, K)) < alpha).cumprod(axis=-1).sum(axis=-1)
    request = np.repeat(np.arange(num_requests), steps)
    return np.full(accepted.size, K), accepted.ravel(), request


def test_binomial_intervals_are_too_narrow_for_counters_and_the_clustered_one_is_not():
    truth = theory.draft_acceptance_ratio([0.2, 0.9], 4).mean()
    rng, hits = np.random.default_rng(0), {"delta": 0, "binomial": 0, "bootstrap": 0}
    for trial in range(200):
        drafted, accepted, request = runs(rng, 40)
        found = {
            "delta": theory.acceptance_ci_clustered(drafted, accepted, request),
            "binomial": theory.acceptance_ci(accepted.sum(), drafted.sum()),
            "bootstrap": theory.acceptance_ci_clustered(
                drafted, accepted, request, "bootstrap", seed=trial, num_resamples=400
            ),
        }
        for name, (_, low, high) in found.items():
            hits[name] += low <= truth <= high
    assert hits["delta"] >= 180
    assert hits["bootstrap"] >= 178
    assert hits["binomial"] < 100


@pytest.mark.parametrize("method", ["chi2", "g", "tv"])
def test_a_true_law_is_rejected_as_often_as_the_level_says(method):
    rng, small = np.random.default_rng(1), 0
    for trial in range(300):
        counts = rng.multinomial(400, LAW)
        p_value = theory.distribution_test(counts, LAW, method, trial, 300).p_value
        small += p_value < 0.1
    assert 12 <= small <= 54  # 30 expected, +- 4.5 standard deviations


@pytest.mark.parametrize("method", ["chi2", "g", "tv"])
def test_a_wrong_law_is_rejected(method):
    other = np.roll(LAW, 1)
    counts = np.random.default_rng(2).multinomial(400, other)
    assert theory.distribution_test(counts, LAW, method).p_value < 1e-3
    impossible = theory.distribution_test([1, 3], [0.0, 1.0], method)
    assert impossible.p_value == 0
    assert impossible.statistic == np.inf


def test_rare_cells_are_merged():
    result = theory.distribution_test([52, 40, 5, 2, 1], [0.5, 0.4, 0.06, 0.02, 0.02])
    assert result.num_cells == 3  # expected 2 + 2 is still too few: the cell of 6 joins them
    alone = theory.distribution_test([3, 0], [0.9, 0.1])
    assert (alone.num_cells, alone.p_value) == (1, 1.0)


def test_the_sample_size_has_the_power_it_promises():
    other = np.array([0.36, 0.32, 0.2, 0.06, 0.04, 0.02])
    n = theory.samples_for_chi2(LAW, other, level=0.05, power=0.8)
    rng = np.random.default_rng(3)
    hits = sum(
        theory.distribution_test(rng.multinomial(n, other), LAW).p_value < 0.05 for _ in range(400)
    )
    assert 0.72 < hits / 400 < 0.88
    assert theory.samples_for_chi2(LAW, other, power=0.9) > n


def test_enough_samples_show_the_law_within_eps():
    n = theory.samples_for_tv(6, 0.1, 0.05)
    assert n == int(np.ceil(2 * (6 * np.log(2) - np.log(0.05)) / 0.01))
    draws = np.random.default_rng(4).multinomial(n, LAW, 2000) / n
    assert (np.abs(draws - LAW).sum(axis=1) < 0.1).mean() > 0.95


def test_the_expected_distance_of_a_sample_from_its_own_law_is_exact():
    p, n = np.array([0.5, 0.3, 0.2]), 5
    exact = 0.0
    for draws in itertools.product(range(3), repeat=n):
        shares = np.bincount(draws, minlength=3) / n
        exact += p[list(draws)].prod() * np.abs(shares - p).sum() / 2
    assert theory.null_expected_tv(p, n) == pytest.approx(exact)
    large = np.sqrt(LAW * (1 - LAW) / (2 * np.pi * 10**6)).sum()
    assert theory.null_expected_tv(LAW, 10**6) == pytest.approx(large, rel=1e-3)
    assert theory.null_expected_tv([1.0, 0.0], 10) == 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: theory.acceptance_ci(5, 4), "n - k"),
        (lambda: theory.acceptance_ci(1, 4, "wald"), "method"),
        (lambda: theory.acceptance_ci_clustered([3], [1], [0]), "number of requests"),
        (lambda: theory.acceptance_ci_clustered([1, 1], [2, 1], [0, 1]), "drafted - accepted"),
        (lambda: theory.distribution_test([1, 1], [0.5, 0.6]), "p must sum to 1"),
        (lambda: theory.distribution_test([0, 0], [0.5, 0.5]), "number of draws"),
        (lambda: theory.samples_for_chi2(LAW, LAW), "difference of the distributions"),
        (lambda: theory.samples_for_chi2([1.0, 0.0], [0.5, 0.5]), "a single one"),
        (lambda: theory.samples_for_tv(3, 0, 0.1), "eps"),
    ],
)
def test_impossible_counts_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
