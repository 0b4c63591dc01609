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
from specjax.simulate.chain_law import alias_method
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


@pytest.mark.parametrize("method", ["probabilistic", "coupled", "greedy"])
def test_rounds_drawn_from_their_law_agree_with_the_exact_sums(method):
    pair = correlated_pair((0.7, 0.9), 24)  # 24 is no power of two
    counts = chain(pair, TEMPERATURES, DEPTHS, 256, 100, method, by="law")
    exact = np.array(
        [
            [
                [exact_tokens_per_step(Pair(pair.target, q), T, K, method) for K in DEPTHS]
                for T in TEMPERATURES
            ]
            for q in pair.draft
        ]
    )
    assert np.abs(z_scores(counts, exact))[:, :, 1:].max() < 4.5
    assert np.abs(z_scores(counts, exact + 0.1))[:, :, 1:].min() > 4.5  # it could fail
    assert (counts.num_emitted[:, :, 0] == counts.num_rounds).all()
    np.testing.assert_array_equal(counts.accepted_per_pos.sum(axis=-1), counts.num_accepted)
    drafted = np.broadcast_to(np.asarray(DEPTHS)[:, None] * 100, counts.num_drafted.shape)
    np.testing.assert_array_equal(counts.num_drafted, drafted)


def test_the_law_has_the_rounds_of_the_shipped_step(grid):
    """Acceptance by position, within 4.5 standard errors of both."""
    law = chain(PAIR, TEMPERATURES, DEPTHS, 64, 480, by="law")
    ours, theirs = (
        np.asarray(one.accepted_per_pos, np.float64)[:, :, 2] / one.num_rounds
        for one in (law, grid)
    )
    error = np.hypot(*(one.std(axis=2, ddof=1) / 8 for one in (ours, theirs)))
    assert np.abs((ours.mean(axis=2) - theirs.mean(axis=2)) / error).max() < 4.5


def test_alias_tables_hold_their_laws():
    draw = np.random.default_rng(0)
    laws = draw.dirichlet(np.full(16, 0.2), 50)
    laws[0], laws[1] = np.eye(16)[3], 1 / 16
    keep, alias = alias_method(laws)
    found = keep / 16
    np.add.at(found, (np.arange(50)[:, None], alias), (1 - keep) / 16)
    np.testing.assert_allclose(found, laws, atol=1e-12)


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
        ({"by": "rounds"}, "by must be 'step' or 'law'"),
        ({"temperatures": (-1.0,)}, "temperatures"),
        ({"num_speculative_tokens": (0,)}, "the largest K"),
        ({"num_speculative_tokens": (-1, 2)}, "num_speculative_tokens"),
    ],
)
def test_impossible_grids_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        chain(PAIR, **options)
