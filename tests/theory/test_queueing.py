"""Queues: closed forms against each other, their limits, and a simulated queue."""

import numpy as np
import pytest

from specjax import theory


def test_littles_law_audits_a_table():
    assert theory.little_ratio(8, 2.0, 4.0) == 1
    batch = theory.effective_batch(rps=2.0, n=100, tpot=0.04)
    assert batch == pytest.approx(8)
    assert theory.little_ratio(batch, 2.0, 100 * 0.04) == pytest.approx(1)


def test_latency_meets_littles_law_and_saturates():
    rps, n, tokens, s0, s1 = np.array([0, 1.0, 3.0]), 200, 2.5, 0.02, 5e-4
    latency = theory.latency_vs_rps(rps, n, tokens, s0, s1)
    batch = rps * latency
    np.testing.assert_allclose(latency, n / tokens * (s0 + s1 * batch))
    limit = theory.saturation_rps(n, tokens, s1)
    assert limit == pytest.approx(25)
    assert theory.latency_vs_rps(limit, n, tokens, s0, s1) == np.inf
    assert theory.latency_vs_rps(0.99 * limit, n, tokens, s0, s1) > 50 * latency[0]
    assert theory.saturation_rps(n, tokens, 0) == np.inf


def test_first_come_first_served_against_a_simulated_queue():
    rps, n = 0.6, 200_000
    rng = np.random.default_rng(0)
    service = rng.gamma(2.0, 0.5, n)  # mean 1, second moment 1.5
    gaps = rng.exponential(1 / rps, n)
    change = np.concatenate([[0], service[:-1] - gaps[1:]]).cumsum()  # Lindley's recursion
    wait = change - np.minimum.accumulate(change)
    blocks = (wait + service).reshape(50, -1).mean(axis=1)
    exact = theory.mg1_fcfs(rps, 1.0, 1.5)
    assert abs(blocks.mean() - exact) < 4.5 * blocks.std() / np.sqrt(50)
    assert theory.mg1_fcfs(0, 1.0, 1.5) == 1
    assert theory.mg1_fcfs(1.0, 1.0, 1.5) == np.inf


def test_sharing_forgets_the_variance_and_equals_the_queue_when_service_is_exponential():
    assert theory.mg1_ps(0.5, 1.0) == 2
    assert theory.mg1_fcfs(0.5, 1.0, 2.0) == pytest.approx(theory.mg1_ps(0.5, 1.0))
    assert theory.mg1_fcfs(0.5, 1.0, 10.0) > theory.mg1_ps(0.5, 1.0)
    assert theory.mg1_ps(2.0, 1.0) == np.inf


def test_prefill_dilutes_the_speedup():
    n = np.array([1, 10, 10_000])
    gain = theory.e2e_speedup(0.5, n, 0.05, 0.025)
    assert gain[0] == 1
    assert gain[1] == pytest.approx((0.5 + 0.45) / (0.5 + 0.225))
    assert 1.99 < gain[2] < 2


def test_a_draft_takes_memory_from_the_batch():
    impact = theory.draft_memory_impact(100, 60, 2, 10, 0.5)
    assert impact == (20.0, 12.0, 0.6)
    assert theory.draft_memory_impact(100, 60, 2, 50, 0.5).spec_tokens == 0
    assert theory.draft_memory_impact(100, 60, 2, 0, 0).ratio == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: theory.little_ratio(0, 1, 1), "concurrency"),
        (lambda: theory.mg1_ps(-1, 1), "rps"),
        (lambda: theory.mg1_fcfs(0.5, 1, 0.5), r"E\[S\^2\]"),
        (lambda: theory.e2e_speedup(0, 1, 0.1, 0.1), "speculative latency"),
        (lambda: theory.draft_memory_impact(50, 60, 2, 1, 1), "beside the weights"),
        (lambda: theory.latency_vs_rps(1, 10, 0.5, 1, 1), "tokens"),
    ],
)
def test_negative_loads_and_times_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
