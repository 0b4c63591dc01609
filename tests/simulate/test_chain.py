"""Chains: the shipped round against exact sums, and against plain Python, number for number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from specjax import theory
from specjax.bench.plain_chain import addressed, plain_chain
from specjax.core.types import Params
from specjax.simulate import Pair, chain, correlated_pair, exact_tokens_per_step
from specjax.simulate.chain import run
from specjax.simulate.noise import noise_key

ALPHAS, TEMPERATURES, DEPTHS = (0.3, 0.8), (0.6, 1.0), (0, 1, 4)
PAIR = correlated_pair(ALPHAS, 16)


def z_scores(counts, exact):
    """Say how many standard errors each cell's mean over seeds is off."""
    tokens = np.asarray(counts.tokens_per_step, np.float64)
    error = tokens.std(axis=-1, ddof=1) / np.sqrt(tokens.shape[-1])
    return (tokens.mean(axis=-1) - exact) / np.maximum(error, 1e-9)


@pytest.fixture(scope="module")
def grid():
    """Run the whole grid once."""
    return chain(PAIR, TEMPERATURES, DEPTHS, 64, 48)


def test_one_call_runs_the_grid_and_agrees_with_the_exact_sums(grid):
    assert grid.num_emitted.shape == (2, 2, 3, 64)
    exact = [
        [
            [exact_tokens_per_step(Pair(PAIR.target, draft), T, K) for K in DEPTHS]
            for T in TEMPERATURES
        ]
        for draft in PAIR.draft
    ]
    assert np.abs(z_scores(grid, exact)).max() < 4.5
    assert np.abs(z_scores(grid, np.array(exact) + 0.3))[:, :, 2].min() > 4.5  # it could fail
    at_one = [theory.tokens_per_step(alpha, DEPTHS) for alpha in ALPHAS]
    np.testing.assert_allclose(np.array(exact)[:, 1], at_one, rtol=1e-6)


def test_the_counters_keep_their_books(grid):
    np.testing.assert_array_equal(grid.num_emitted, grid.num_accepted + grid.num_rounds)
    np.testing.assert_array_equal(grid.accepted_per_pos.sum(axis=-1), grid.num_accepted)
    assert (np.diff(np.asarray(grid.accepted_per_pos), axis=-1) <= 0).all()
    drafted = np.asarray(DEPTHS)[None, None, :, None] * grid.num_rounds
    np.testing.assert_array_equal(grid.num_drafted, np.broadcast_to(drafted, (2, 2, 3, 64)))


def test_a_masked_k_is_the_k_of_its_own_program(grid):
    alone = chain(Pair(PAIR.target, PAIR.draft[1]), 1.0, 1, 64, 48)
    np.testing.assert_array_equal(alone.num_accepted[0, 0], grid.num_accepted[1, 1, 1])


@pytest.mark.parametrize("method", ["coupled", "greedy"])
def test_walk_accepts_what_its_exact_sum_says(method):
    pair = Pair(PAIR.target, PAIR.draft[1])
    temperatures = (0.0, 0.6, 1.0)
    counts = chain(pair, temperatures, 3, 96, 32, method)
    exact = [[exact_tokens_per_step(pair, T, 3, method)] for T in temperatures]
    assert np.abs(z_scores(counts, exact)[1:]).max() < 4.5
    np.testing.assert_allclose(counts.tokens_per_step[0], exact[0][0], atol=0.7)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_plain_python_writes_the_same_text(temperature):
    pair = correlated_pair(0.7, 32)
    keys = jax.random.split(noise_key(5), 3)
    heat, depth = jnp.full(3, temperature, jnp.float32), jnp.full(3, 4, jnp.int32)
    state, _ = run(Params(*pair), keys, heat, depth, 4, 40, "probabilistic")
    target, draft = (np.asarray(table, np.float64).tolist() for table in pair)
    for row, words in enumerate(jax.random.key_data(keys).tolist()):
        text = state.text.tokens[row, : int(state.text.lengths[row])].tolist()
        plain = plain_chain(target, draft, addressed(tuple(words)), temperature, 4, 44)
        assert len(text) > 100
        assert text == plain


def test_the_text_has_the_targets_law_whatever_the_draft():
    pair = correlated_pair(0.7, 4, 1.0, seed=2)
    keys = jax.random.split(noise_key(6), 512)
    state, _ = run(Params(*pair), keys, jnp.ones(512), jnp.full(512, 3), 3, 16, "probabilistic")
    tokens, lengths = np.asarray(state.text.tokens), np.asarray(state.text.lengths)
    law = softmax(np.asarray(pair.target, np.float64), axis=-1)
    here, there = tokens[:, 4:19].ravel(), tokens[:, 5:20].ravel()
    assert (lengths >= 20).all()
    for token in range(4):
        counts = np.bincount(there[here == token], minlength=4)
        assert counts.sum() > 300
        assert theory.distribution_test(counts, law[token]).p_value > 1e-4


def test_a_pair_has_the_alpha_it_was_asked_for_in_every_state():
    pair = correlated_pair([0.4, 0.75, 1.0], 24)
    p = softmax(np.asarray(pair.target, np.float64), axis=-1)
    for draft, alpha in zip(pair.draft, (0.4, 0.75, 1.0), strict=True):
        q = softmax(np.asarray(draft, np.float64), axis=-1)
        np.testing.assert_allclose(theory.acceptance_prob(p, q), alpha, atol=1e-6)
    with pytest.raises(ValueError, match=r"alpha must be at least 0\.\d+ at sharpness 1"):
        correlated_pair(0.1, 24, 1.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "tree"}, "method must be one of"),
        ({"temperatures": (-1.0,)}, "temperatures"),
        ({"num_speculative_tokens": (0,)}, "the largest K"),
        ({"num_speculative_tokens": (-1, 2)}, "num_speculative_tokens"),
    ],
)
def test_impossible_grids_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        chain(PAIR, **options)
