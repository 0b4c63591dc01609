"""The length of a step: exact at the edges, against rationals, and against simulated steps."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import theory

ALPHAS = [Fraction(0), Fraction(1, 10**9), Fraction(3, 10), Fraction(1, 2), Fraction(4, 5)]
ALPHAS += [Fraction(999, 1000), 1 - Fraction(1, 10**9), 1 - Fraction(1, 2**50), Fraction(1)]


def lengths(alpha, K, size, seed=0):
    """Simulate the lengths of steps: accepted draft tokens, and one more."""
    accepted = np.random.default_rng(seed).random((size, K)) < alpha
    return 1 + np.cumprod(accepted, axis=1).sum(axis=1)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("K", [0, 1, 2, 5, 64])
def test_tokens_and_accepted_equal_the_rational_sums(alpha, K):
    exact = sum(alpha**i for i in range(K + 1))
    assert theory.tokens_per_step(float(alpha), K) == pytest.approx(float(exact), rel=4e-15)
    assert theory.accepted_per_step(float(alpha), K) == pytest.approx(float(exact - 1), rel=4e-15)
    square = sum((2 * i + 1) * alpha**i for i in range(K + 1))
    variance = theory.step_length_var(float(alpha), K)
    assert variance == pytest.approx(float(square - exact**2), rel=1e-9, abs=1e-11)


def test_the_edges_are_exact():
    K = np.arange(20)
    np.testing.assert_array_equal(theory.tokens_per_step(0, K), 1)
    np.testing.assert_array_equal(theory.tokens_per_step(1, K), K + 1)
    np.testing.assert_array_equal(theory.accepted_per_step(1, K), K)
    np.testing.assert_array_equal(theory.tokens_per_step([0, 0.3, 1], 0), 1)
    np.testing.assert_array_equal(theory.step_length_pmf([0, 1], 2), [[1, 0, 0], [0, 0, 1]])
    assert theory.draft_acceptance_ratio(1, 4) == 1
    assert theory.steps_to_emit(0, 0.5, 3) == 0
    np.testing.assert_array_equal(theory.steps_to_emit([1, 4, 5], 1, 3), [1, 1, 2])
    assert theory.steps_to_emit(7, 0, 3) == 7


def test_arrays_broadcast_in_float64_and_scalars_stay_scalars():
    surface = theory.tokens_per_step(np.linspace(0, 1, 5)[:, None], np.arange(3))
    assert surface.shape == (5, 3)
    assert surface.dtype == np.float64
    assert np.ndim(theory.tokens_per_step(0.5, 2)) == 0
    assert theory.tokens_per_step(np.float32(0.5), 2) == 1.75


def test_the_pmf_has_the_mean_and_the_variance():
    pmf = theory.step_length_pmf([0.1, 0.6, 0.95], 6)
    values = np.arange(1, 8)
    np.testing.assert_allclose(pmf.sum(axis=1), 1)
    mean = pmf @ values
    np.testing.assert_allclose(mean, theory.tokens_per_step([0.1, 0.6, 0.95], 6))
    np.testing.assert_allclose(
        pmf @ values**2 - mean**2, theory.step_length_var([0.1, 0.6, 0.95], 6)
    )


@pytest.mark.parametrize(("alpha", "K"), [(0.3, 2), (0.8, 5), (0.95, 8)])
def test_simulated_steps_agree(alpha, K):
    size = 40_000
    drawn = lengths(alpha, K, size)
    error = np.sqrt(theory.step_length_var(alpha, K) / size)
    assert abs(drawn.mean() - theory.tokens_per_step(alpha, K)) < 4.5 * error
    shares = np.bincount(drawn, minlength=K + 2)[1:]
    assert theory.distribution_test(shares, theory.step_length_pmf(alpha, K)).p_value > 1e-4
    ratio = (drawn - 1).mean() / K
    assert abs(ratio - theory.draft_acceptance_ratio(alpha, K)) < 4.5 * error / K


@pytest.mark.parametrize("K", [1, 3, 8])
def test_the_inverses_undo_the_formulas(K):
    alpha = np.array([0, 1e-6, 0.2, 0.5, 0.8105, 0.999, 1])
    ratio = theory.draft_acceptance_ratio(alpha, K)
    np.testing.assert_allclose(theory.alpha_from_ratio(ratio, K), alpha, rtol=1e-9, atol=1e-14)
    tokens = theory.tokens_per_step(alpha, K)
    np.testing.assert_allclose(theory.alpha_from_length(tokens, K), alpha, rtol=1e-9, atol=1e-14)


def test_the_ratio_of_counters_is_not_alpha():
    assert theory.draft_acceptance_ratio(0.8, 5) == pytest.approx(0.537856)
    assert theory.alpha_from_ratio(0.537856, 5) == pytest.approx(0.8)


def test_adaptive_lengths_keep_the_identity_of_counters():
    pmf, alpha = np.array([0.4, 0.1, 0.2, 0.3]), 0.6
    drafted = pmf @ np.arange(4)
    accepted = pmf @ theory.accepted_per_step(alpha, np.arange(4))
    tokens = theory.tokens_adaptive(pmf, alpha)
    assert tokens == pytest.approx(theory.tokens_from_ratio(drafted, accepted / drafted))
    assert theory.tokens_adaptive([0, 0, 0, 1], alpha) == theory.tokens_per_step(alpha, 3)
    np.testing.assert_allclose(
        theory.tokens_adaptive(pmf, [0.0, 0.6, 1.0]), [1.0, tokens, 1 + drafted]
    )


def test_steps_to_emit_discards_the_overshoot():
    n, alpha, K = 10, 0.7, 3
    drawn = lengths(alpha, K, 20_000 * n, seed=1).reshape(20_000, n).cumsum(axis=1)
    steps = 1 + (drawn < n).sum(axis=1)
    exact = theory.steps_to_emit(n, alpha, K)
    assert abs(steps.mean() - exact) < 4.5 * steps.std() / np.sqrt(len(steps))
    assert exact > n / theory.tokens_per_step(alpha, K)
    long = theory.steps_to_emit(5000, alpha, K)
    assert long == pytest.approx(5000 / theory.tokens_per_step(alpha, K), rel=1e-3)


def test_positions_give_the_same_tokens_either_way():
    conditional = np.array([[0.9, 0.7, 0.5], [0.4, 0.0, 0.8]])
    marginal = np.cumprod(conditional, axis=1)
    tokens = theory.tokens_from_positions(conditional=conditional)
    np.testing.assert_allclose(tokens, theory.tokens_from_positions(marginal=marginal))
    np.testing.assert_allclose(
        theory.marginal_to_conditional(marginal), [[0.9, 0.7, 0.5], [0.4, 0.0, 0.0]]
    )
    assert theory.tokens_from_positions(conditional=[0.8] * 5) == pytest.approx(3.68928)


@pytest.mark.parametrize("alpha", [0.0, 1e-4, 0.3, 0.5, 0.9, 0.99999, 1.0])
def test_gradients_are_those_of_the_sum_even_at_the_edges(alpha):
    with jax.enable_x64(True):
        for K in (0, 1, 4):
            slope = jax.grad(lambda a, K=K: theory.tokens_per_step(a, K))(jnp.float64(alpha))
            exact = sum(i * alpha ** (i - 1) for i in range(1, K + 1))
            assert float(slope) == pytest.approx(exact, rel=1e-9, abs=1e-12)


def test_jit_and_vmap_go_through_whatever_x64_says():
    alphas = jnp.linspace(0, 1, 7)
    surface = jax.jit(lambda a: theory.tokens_per_step(a[:, None], np.arange(4)))(alphas)
    np.testing.assert_allclose(
        surface, theory.tokens_per_step(np.linspace(0, 1, 7)[:, None], np.arange(4)), rtol=1e-5
    )
    mapped = jax.vmap(lambda a: theory.accepted_per_step(a, 3))(alphas)
    np.testing.assert_allclose(mapped, theory.accepted_per_step(np.linspace(0, 1, 7), 3), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: theory.tokens_per_step(1.2, 3), r"alpha must be in \[0, 1\], got 1.2"),
        (lambda: theory.tokens_per_step([0.5, np.nan], 3), "alpha must be .* got nan"),
        (lambda: theory.accepted_per_step(0.5, -1), "K must be at least 0, got -1"),
        (lambda: theory.draft_acceptance_ratio(0.5, 0), "K must be at least 1"),
        (lambda: theory.alpha_from_ratio(1.5, 3), "r must be"),
        (lambda: theory.alpha_from_length(4.5, 3), "L must be at most K \\+ 1 = 4"),
        (lambda: theory.alpha_from_length(0.5, 3), "L must be at least 1"),
        (lambda: theory.tokens_adaptive([0.5, 0.4], 0.5), "len_pmf must sum to 1, got 0.9"),
        (lambda: theory.tokens_from_ratio(-1, 0.5), "mean_drafted"),
        (lambda: theory.tokens_from_positions(), "either conditional= or marginal="),
        (lambda: theory.marginal_to_conditional([0.3, 0.5]), "fall"),
        (lambda: theory.steps_to_emit(-1, 0.5, 3), "n must be"),
    ],
)
def test_what_is_no_probability_length_or_law_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_what_computes_in_numpy_says_so_under_a_gradient():
    for call in (
        lambda x: theory.alpha_from_length(x, 4),
        lambda x: theory.alpha_from_ratio(x, 4),
        lambda x: theory.multi_draft_acceptance(jnp.stack([x, 1 - x]), [0.5, 0.5], 2),
    ):
        with pytest.raises(TypeError, match="traced by JAX, and this function computes in NumPy"):
            jax.grad(call)(0.5)
    with pytest.raises(ValueError, match=r"L must be at most K \+ 1 = 6, .* got 7"):
        theory.alpha_from_length(7, 5)
