"""Speedups: the papers' tables, the best K by search and by Lambert's function, and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import lambertw

from specjax import theory
from specjax.theory.published import LEVIATHAN_TABLE_1, LEVIATHAN_TABLE_4

GRID_ALPHA, GRID_C = np.linspace(0.02, 0.98, 49)[:, None], np.linspace(0.005, 0.6, 40)


@pytest.mark.parametrize("row", LEVIATHAN_TABLE_1, ids=str)
def test_leviathan_table_1(row):
    assert round(float(theory.ops_factor(row.alpha, row.K, 0)), 2) == row.operations
    assert round(float(theory.speedup(row.alpha, row.K, 0)), 2) == row.speedup


def test_leviathan_table_4_reproduces_from_its_rounded_inputs_within_7_hundredths():
    errors = [abs(theory.speedup(r.alpha, r.K, r.c) - r.expected) for r in LEVIATHAN_TABLE_4]
    assert 0.06 < max(errors) < 0.07


def test_speedup_is_tokens_over_cost_and_plain_decoding_is_1():
    np.testing.assert_array_equal(theory.speedup([0, 0.5, 1], 0, 0.3), 1)
    assert theory.speedup(1, 4, 0) == 5
    assert theory.speedup(0, 4, 0.25) == 0.5
    assert theory.speedup(0.8, 5, 0.1, 1.2, 0.3) == pytest.approx(3.68928 / 2.0)
    surface = theory.speedup(GRID_ALPHA, 4, GRID_C)
    assert surface.shape == (49, 40)


def test_some_k_pays_if_and_only_if_alpha_exceeds_c():
    best = theory.optimal_k(GRID_ALPHA, GRID_C)
    off = np.abs(GRID_ALPHA - GRID_C) > 1e-9
    np.testing.assert_array_equal((best > 0) & off, (GRID_ALPHA > GRID_C) & off)
    gain = theory.speedup(GRID_ALPHA, best, GRID_C)
    assert (gain >= theory.guaranteed_speedup(GRID_ALPHA, GRID_C) - 1e-12).all()
    assert (gain <= theory.oracle_speedup(GRID_ALPHA, GRID_C) + 1e-12).all()
    assert theory.guaranteed_speedup(0.1, 0.2) == 1
    assert theory.oracle_speedup(0.8) == pytest.approx(5)
    assert theory.oracle_speedup(1) == np.inf


def test_the_best_k_satisfies_the_marginal_condition_first():
    best = theory.optimal_k(GRID_ALPHA, GRID_C, k_max=400)
    K = np.arange(400)
    alpha, c = GRID_ALPHA[..., None], GRID_C[..., None]
    stop = alpha ** (K + 1) * (1 + c * K) <= c * theory.tokens_per_step(alpha, K)
    np.testing.assert_array_equal(best, stop.argmax(axis=-1))


def test_the_real_best_k_is_lamberts_and_beside_the_integer_one():
    alpha, c = GRID_ALPHA, GRID_C
    real = theory.optimal_k_real(alpha, c)
    best = theory.optimal_k(alpha, c, k_max=400)
    assert (np.abs(real - best) < 1).all()
    L = -np.log(alpha)
    A = L * (1 - c) / c
    with np.errstate(under="ignore"):
        y = -lambertw(-np.exp(-(1 + np.where(A < 600, A, np.nan))), -1).real
    np.testing.assert_allclose(
        np.where(A < 600, np.maximum((y - 1 - A) / L - 1, 0), np.nan),
        np.where(A < 600, real, np.nan),
        atol=1e-6,
    )
    inside = real > 0.01
    for step in (-0.01, 0.01):
        moved = theory.speedup(alpha, np.maximum(real + step, 0), c)
        assert (moved <= theory.speedup(alpha, real, c) + 1e-15)[inside].all()
    assert theory.optimal_k_real(0.8, 0.1) == pytest.approx(5.7562, abs=1e-4)
    np.testing.assert_array_equal(
        theory.optimal_k_real([0, 0.5, 1, 0.5], [0.1, 0, 0.1, 2]), [0, np.inf, np.inf, 0]
    )


def test_a_dear_block_lowers_the_best_k():
    free = theory.optimal_k(0.8, 0.1)
    dear = theory.optimal_k(0.8, 0.1, v=lambda K: 1 + 0.2 * K)
    assert (free, dear) == (6, 3)
    assert theory.optimal_k(0.8, 0.1, v=9.0, k_max=8) == 0
    assert theory.optimal_k(0.9, 0, k_max=7) == 7
    assert theory.optimal_k([0, 1], 0.5, k_max=3).tolist() == [0, 3]


def test_breakeven_is_where_the_speedup_is_1():
    K, c = np.arange(1, 9)[:, None], np.linspace(0.01, 0.9, 20)
    alpha = theory.breakeven_alpha(K, c)
    np.testing.assert_allclose(theory.speedup(alpha, K, c), 1)
    np.testing.assert_allclose(alpha[0], c)
    assert np.isnan(theory.breakeven_alpha(3, 1.5))
    assert theory.breakeven_alpha(3, 0) == 0


def test_the_gradient_of_the_speedup_climbs_to_the_best_k():
    with jax.enable_x64(True):
        slope = jax.grad(lambda K: theory.speedup(0.8, K, 0.1))
        best = theory.optimal_k_real(0.8, 0.1)
        assert float(slope(jnp.float64(best))) == pytest.approx(0, abs=1e-9)
        assert float(slope(jnp.float64(2.0))) > 0 > float(slope(jnp.float64(9.0)))


def test_the_gradient_by_draft_logits_moves_the_draft_towards_the_target():
    target = jnp.asarray([0.5, 0.3, 0.2])

    def gain(logits):
        alpha = theory.acceptance_prob(target, jax.nn.softmax(logits))
        return theory.speedup(alpha, 4, 0.1)

    logits = jnp.asarray([0.0, 0.0, 1.0])
    before = gain(logits)
    for _ in range(60):
        logits = logits + 0.1 * jax.grad(gain)(logits)
    assert gain(logits) > before + 0.5
    assert theory.tv(target, jax.nn.softmax(logits)) < 0.1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: theory.speedup(0.5, 3, -0.1), "c must be at least 0, got -0.1"),
        (lambda: theory.speedup(0.5, 3, 0.1, overhead=-1), "overhead"),
        (lambda: theory.speedup(-0.5, 3, 0.1), "alpha"),
        (lambda: theory.optimal_k(0.5, 0.1, v=lambda K: -K), "v must be"),
        (lambda: theory.breakeven_alpha(2, -1), "c must be"),
        (lambda: theory.ops_factor(0.5, 2, -1), "c_hat"),
    ],
)
def test_negative_costs_and_impossible_chances_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_where_alpha_is_c_no_k_gains_and_long_drafts_are_found():
    for alpha in (0.3, 0.5, 0.9):
        assert theory.optimal_k(alpha, alpha) == 0  # rounding errors are no gain
    assert theory.optimal_k(0.99, 0.01) == 113


def test_a_round_that_costs_nothing_is_refused():
    with pytest.raises(ValueError, match="the cost of a round, must be at least"):
        theory.speedup(0.8, 4, 0.0, 0.0)


def test_two_levels_cost_what_simulated_inner_rounds_cost():
    rng, n, alpha, depth, c, draft_c = np.random.default_rng(0), 6, 0.7, 3, 0.1, 0.2
    rounds = np.zeros(20_000, int)
    made = np.zeros_like(rounds)
    while (running := made < n).any():
        accepted = (rng.random((len(made), depth)) < alpha).cumprod(axis=1).sum(axis=1)
        rounds += running
        made += accepted + 1
    cost = rounds * (depth * c + 1) * draft_c / n
    found = theory.staged_draft_cost(n, alpha, depth, c, draft_c)
    assert found == pytest.approx(cost.mean(), abs=4 * cost.std() / np.sqrt(len(cost)))
    assert theory.staged_draft_cost(n, alpha, 0, c, draft_c) == pytest.approx(draft_c)
    assert theory.staged_draft_cost(n, 1.0, n - 1, 0.0, draft_c) == pytest.approx(draft_c / n)
    with pytest.raises(ValueError, match="n must be at least 1"):
        theory.staged_draft_cost(0, alpha, depth, c, draft_c)
