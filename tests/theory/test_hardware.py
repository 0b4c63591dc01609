"""Rooflines, experts and schedules: limits that must hold, and invariants of any hardware."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import theory
from specjax.theory import ASCEND_910B, H200, QWEN3_0_6B, QWEN3_32B
from specjax.theory.roofline import knee

BATCHES = np.array([1, 4, 16, 64, 256, 1024])


def test_bytes_of_the_cache_and_time_of_a_pass():
    assert theory.kv_bytes_per_token(64, 8, 128) == 262_144  # Qwen3-32B in bf16: 256 KiB
    weights = 32.8e9 * 2 / 4.8e12
    alone = theory.decode_time_roofline(1, 1, 0, QWEN3_32B, H200)
    assert alone == pytest.approx(weights)
    crowded = theory.decode_time_roofline(4096, 1, 0, QWEN3_32B, H200)
    assert crowded == pytest.approx(2 * 32.8e9 * 4096 / 989e12)
    summed = theory.decode_time_roofline(64, 1, 1000, QWEN3_32B, H200, "sum", 1e-3)
    attention = 4 * 64 * 64 * 128  # operations per token and token of context: L H d, twice
    operations = (2 * 32.8e9 + 1000 * attention) * 64
    parts = weights + 64 * 1000 * 262_144 / 4.8e12 + operations / 989e12 + 1e-3
    assert summed == pytest.approx(parts)


@pytest.mark.parametrize("hw", [H200, ASCEND_910B], ids=lambda hw: hw.name)
def test_the_gain_falls_with_the_batch_once_compute_binds(hw):
    gain = theory.speedup_vs_batch(BATCHES, 0.8, 4, 0, QWEN3_32B, hw)
    assert gain[0] == pytest.approx(theory.tokens_per_step(0.8, 4))
    assert (np.diff(gain) <= 1e-12).all()
    assert gain[-1] == pytest.approx(theory.tokens_per_step(0.8, 4) / 5)
    border = theory.critical_batch(5, 0, QWEN3_32B, hw)
    assert border * 5 == pytest.approx(knee(QWEN3_32B, hw))
    assert theory.speedup_vs_batch(border, 0.8, 4, 0, QWEN3_32B, hw) == pytest.approx(gain[0])
    assert theory.speedup_vs_batch(1.1 * border, 0.8, 4, 0, QWEN3_32B, hw) < gain[0] - 0.05
    assert "assumed" in hw.assumption


def test_a_draft_costs_and_long_context_pays():
    free = theory.speedup_vs_batch(8, 0.8, 4, 1000, QWEN3_32B, H200)
    paid = theory.speedup_vs_batch(8, 0.8, 4, 1000, QWEN3_32B, H200, draft=QWEN3_0_6B)
    assert 1 < paid < free
    assert theory.critical_batch(5, 100_000, QWEN3_32B, H200) == np.inf
    context = np.array([1e3, 1e4, 1e5])
    gain = theory.long_context_speedup(64, 0.8, 4, context, 512, QWEN3_32B, H200)
    assert (np.diff(gain) > 0).all()
    full = theory.long_context_speedup(64, 0.8, 4, 1e5, 1e5, QWEN3_32B, H200)
    assert full < 1 < gain[-1]


def test_experts_are_read_as_often_as_random_routing_reads_them():
    E, k, T, n = 16, 2, 5, 4000
    rng = np.random.default_rng(0)
    routed = rng.random((n, T, E)).argsort(axis=-1)[..., :k].reshape(n, -1)
    active = np.array([len(set(row)) for row in routed.tolist()])
    exact = theory.moe_active_experts(E, k, T)
    assert abs(active.mean() - exact) < 4.5 * active.std() / np.sqrt(n)
    np.testing.assert_allclose(theory.moe_active_experts(E, k, [0, 1]), [0, k])
    assert theory.moe_active_experts(8, 8, 3) == 8
    assert theory.moe_tokens_per_expert(E, k, 1) == pytest.approx(1)
    assert theory.moe_tokens_per_expert(E, k, 1e4) == pytest.approx(1e4 * k / E)
    tokens = theory.moe_full_activation_tokens(E, k, 0.95)
    assert theory.moe_active_experts(E, k, tokens) == pytest.approx(0.95 * E)
    assert theory.moe_full_activation_tokens(8, 8) == 1


def test_target_efficiency_is_what_a_block_costs():
    def time(B, m):
        return theory.decode_time_roofline(B, m, 0, QWEN3_32B, H200)

    np.testing.assert_allclose(theory.target_efficiency([1, 1e5], 4, time), [1, 1 / 5])


def test_goodput_is_a_speedup_when_compute_is_free_and_k_falls_with_the_batch():
    t0, t1, td = 0.02, 2e-4, 1e-3
    gain = theory.goodput(1, 0.8, 4, t0, 0, td) / theory.goodput(1, 0.8, 0, t0, 0, td)
    assert gain == pytest.approx(theory.speedup(0.8, 4, td / t0))
    best = theory.optimal_k_goodput(np.arange(1, 300), 0.8, t0, t1, td)
    assert (np.diff(best) <= 0).all()
    assert best[0] > 6 > best[-1]
    slope = jax.grad(lambda K: theory.goodput(8, 0.8, K, t0, t1, td))
    assert slope(jnp.float32(1.0)) > 0 > slope(jnp.float32(16.0))


@pytest.mark.parametrize("hysteresis", [0.0, 0.02, 0.1])
def test_the_schedule_is_what_vllm_reads_and_loses_no_more_than_its_hysteresis(hysteresis):
    cost = {"t0": 0.02, "t1": 2e-4, "td": 1e-3}
    ranges = theory.num_speculative_tokens_per_batch_size(
        0.8, **cost, max_batch=200, hysteresis=hysteresis
    )
    assert json.loads(json.dumps(ranges)) == ranges
    assert ranges[0][0] == 1
    assert ranges[-1][1] == 200
    for (_, last, k), (first, _, following) in itertools.pairwise(ranges):
        assert first == last + 1
        assert k > following
    for first, last, k in ranges:
        for size in (first, last):
            got = theory.goodput(size, 0.8, k, **cost)
            best = theory.goodput(size, 0.8, np.arange(17), **cost).max()
            assert best <= (1 + hysteresis) * got * (1 + 1e-12)
    none = theory.num_speculative_tokens_per_batch_size(0.0, **cost, max_batch=8)
    assert none == [[1, 8, 0]]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: theory.decode_time_roofline(1, 1, 0, QWEN3_32B, H200, "both"), "overlap"),
        (lambda: theory.decode_time_roofline(-1, 1, 0, QWEN3_32B, H200), "B must be"),
        (lambda: theory.moe_active_experts(4, 5, 1), "E - k"),
        (lambda: theory.moe_full_activation_tokens(4, 2, 1.0), "share"),
        (lambda: theory.goodput(1, 0.5, 2, -1, 0, 0), "t0"),
        (lambda: theory.num_speculative_tokens_per_batch_size(0.5, 1, 1, 1, max_batch=0), "max_"),
        (lambda: theory.kv_bytes_per_token(-1, 8, 128), "num_layers"),
    ],
)
def test_impossible_hardware_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
