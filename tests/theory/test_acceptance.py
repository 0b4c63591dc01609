"""The chance of acceptance: against the shipped kernels, simulated draws and exact rationals."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import theory
from specjax.core import sampling as s
from specjax.core.types import Sampling
from specjax.theory.acceptance import warp

P = np.array([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [0.1, 0.1, 0.8]])
Q = np.array([[0.2, 0.3, 0.5], [0.25, 0.25, 0.5], [0.1, 0.1, 0.8]])


def random_laws(seed, *shape):
    weights = np.random.default_rng(seed).gamma(0.5, size=shape)
    return weights / weights.sum(axis=-1, keepdims=True)


def test_each_rule_is_its_sum():
    exact = [min(Fraction(a, 10), Fraction(b, 10)) for a, b in ((5, 2), (3, 3), (2, 5))]
    assert theory.acceptance_prob(P[0], Q[0]) == pytest.approx(float(sum(exact)))
    np.testing.assert_allclose(theory.acceptance_prob(P, Q), [0.7, 0.25, 1.0])
    np.testing.assert_allclose(theory.acceptance_prob(P, Q, "match"), (P * Q).sum(axis=1))
    np.testing.assert_allclose(theory.acceptance_prob(P, Q, "one-hot"), [0.2, 0.0, 0.8])
    np.testing.assert_allclose(theory.greedy_draft_alpha(P, Q), [0.2, 0.0, 0.8])
    np.testing.assert_allclose(theory.acceptance_prob(P, Q, "lenient", 0.5), [0.9, 0.25, 1.0])
    np.testing.assert_allclose(
        theory.acceptance_prob(P, Q, "lenient"), theory.acceptance_prob(P, Q)
    )
    np.testing.assert_allclose(theory.tv(P, Q), 1 - theory.acceptance_prob(P, Q))


def test_a_one_hot_draft_is_the_greedy_rule():
    p, q = random_laws(0, 50, 8), random_laws(1, 50, 8)
    hot = np.eye(8)[q.argmax(axis=1)]
    np.testing.assert_allclose(theory.acceptance_prob(p, hot), theory.greedy_draft_alpha(p, q))


def test_match_never_beats_rejection_sampling_and_coupling_keeps_its_bound():
    p, q = random_laws(2, 200, 8), random_laws(3, 200, 8)
    best = theory.acceptance_prob(p, q)
    assert (theory.acceptance_prob(p, q, "match") <= best + 1e-12).all()
    coupled = theory.acceptance_prob(p, q, "coupled")
    assert (theory.coupled_bound(p, q) <= coupled + 1e-12).all()
    assert (coupled <= best + 1e-12).all()


def test_coupled_draws_agree_as_often_as_the_formula_says():
    p, q, n = P[0], Q[0], 40_000
    race = np.random.default_rng(4).exponential(size=(n, 3))
    agreed = ((race / p).argmin(axis=1) == (race / q).argmin(axis=1)).sum()
    _, low, high = theory.acceptance_ci(agreed, n, level=0.9999)
    assert low < theory.acceptance_prob(p, q, "coupled") < high


def test_accepted_and_recovered_tokens_together_follow_the_target():
    p, q = random_laws(5, 40, 6), random_laws(6, 40, 6)
    accepted = np.minimum(p, q)
    recovered = theory.tv(p, q)[:, None] * theory.residual(p, q)
    np.testing.assert_allclose(accepted + recovered, p)
    np.testing.assert_allclose(theory.residual(p, p), p)


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, None), (0.7, None), (1.0, 3), (0.8, 5)])
def test_laws_are_warped_as_the_sampler_warps_them(top_p, top_k):
    logits = np.random.default_rng(7).normal(size=(4, 12)) * 2
    temperatures = np.array([0.0, 0.5, 1.0, 1.7])
    mine = warp(np, logits, temperatures[:, None], top_p, top_k)
    sampling = Sampling(
        temperature=jnp.asarray(temperatures, jnp.float32),
        max_draft=jnp.zeros(4, jnp.int32),
        stop_ids=jnp.full((4, 1), 12),
        top_k=jnp.full(4, 12 if top_k is None else top_k),
        top_p=jnp.full(4, top_p, jnp.float32),
    )
    ours = jnp.asarray(logits, jnp.float32)[:, None]
    law = s.compute_probs(s.truncate(ours, sampling), sampling)[:, 0]
    np.testing.assert_allclose(mine, law, atol=2e-6)


def test_alpha_against_temperature_warps_both_laws():
    lp, lq = np.random.default_rng(8).normal(size=(2, 5, 16)) * 2
    alpha = theory.alpha_vs_temperature(lp, lq, [0.0, 1.0, 100.0])
    assert alpha.shape == (3, 5)
    np.testing.assert_array_equal(alpha[0], lp.argmax(axis=1) == lq.argmax(axis=1))
    np.testing.assert_allclose(
        alpha[1], theory.acceptance_prob(jax.nn.softmax(lp), jax.nn.softmax(lq)), rtol=1e-5
    )
    assert (alpha[2] > 0.95).all()
    np.testing.assert_allclose(theory.alpha_vs_temperature(lp, lp, [0.3, 1.0], 0.9), 1.0)
    only = theory.alpha_vs_temperature(lp, lp, [1.0], 0.5, truncate="target")
    kept = warp(np, lp, 1.0, 0.5)
    np.testing.assert_allclose(only[0], np.minimum(kept, warp(np, lp, 1.0)).sum(axis=-1))
    assert (only < 1).all()


def test_the_gradient_by_temperature_is_the_slope():
    lp, lq = np.random.default_rng(9).normal(size=(2, 16)) * 2
    with jax.enable_x64(True):
        slope = jax.grad(lambda T: theory.alpha_vs_temperature(lp, lq, T[None])[0])
        near = theory.alpha_vs_temperature(lp, lq, [0.8 - 1e-6, 0.8 + 1e-6])
        assert float(slope(jnp.float64(0.8))) == pytest.approx((near[1] - near[0]) / 2e-6, rel=1e-5)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: theory.acceptance_prob([0.5, 0.4], [0.5, 0.5]),
            "rows of p must sum to 1, got 0.9",
        ),
        (lambda: theory.acceptance_prob([0.5, 0.5], [1.5, -0.5]), "q must be in"),
        (lambda: theory.acceptance_prob(P, Q, "greedy"), "rule must be one of .* got 'greedy'"),
        (lambda: theory.acceptance_prob(P, Q, "lenient", 0), "lenience"),
        (lambda: theory.alpha_vs_temperature([0.0], [0.0], [-1]), "temperatures"),
        (lambda: theory.alpha_vs_temperature([0.0], [0.0], [1], truncate="draft"), "truncate"),
        (lambda: theory.alpha_vs_temperature([0.0], [0.0], [1], top_p=0), "top_p"),
    ],
)
def test_what_is_no_law_or_rule_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
