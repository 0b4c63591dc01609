"""The lightning indexer: which positions it chooses, and that its parts are those of the paper."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import ops
from specjax.kernels.primitive import FORMS
from specjax.models import indexer
from specjax.models.rope import turn
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from tests.weights import tiny
from tests.weights.test_parity import CLEARLY, TOLERANCE, error, read

ROWS, NODES, WIDTH, HEADS, DIM = 2, 3, 21, 5, 8


def drawn(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "bits"])
def test_scores_are_weighted_sums_over_heads(kind):
    query, weights = drawn(ROWS, NODES, HEADS, DIM), drawn(ROWS, NODES, HEADS, seed=1)
    keys = drawn(ROWS, 1, WIDTH, DIM, seed=2).astype("float32" if kind == "float32" else "bfloat16")
    wide = np.asarray(keys.astype(jnp.float32))[:, 0]
    near = np.maximum(np.einsum("bnhd,bwd->bnhw", query, wide), 0)
    expected = np.einsum("bnhw,bnh->bnw", near, weights)
    found = ops.index_scores(query, ops.to_bits(keys) if kind == "bits" else keys, weights)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    plain = FORMS["score_positions"](query, jnp.asarray(wide), weights)
    np.testing.assert_allclose(plain, expected, atol=1e-5)


def test_a_score_does_not_depend_on_its_company():
    query, weights = drawn(ROWS, NODES, HEADS, DIM), drawn(ROWS, NODES, HEADS, seed=1)
    keys = drawn(ROWS, 1, 4 * WIDTH, DIM, seed=2)
    whole = ops.index_scores(query, keys, weights)
    for width in (1, WIDTH):
        alone = ops.index_scores(query[:1, 1:2], keys[:1, :, :width], weights[:1, 1:2])
        np.testing.assert_array_equal(alone[0, 0], whole[0, 1, :width])


@pytest.mark.parametrize("values", [1, 3, 1000], ids=["all equal", "many ties", "few ties"])
@pytest.mark.parametrize("top_k", [1, 4, WIDTH - 1])
def test_the_highest_are_chosen_and_of_equal_ones_the_first(values, top_k):
    rng = np.random.default_rng(values)
    scores = rng.integers(0, values, (ROWS, NODES, WIDTH)).astype(np.float32)
    mask = rng.random((ROWS, NODES, WIDTH)) < np.array([0.0, 0.3, 1.0])[None, :, None]
    found = np.asarray(indexer.highest(jnp.asarray(scores), jnp.asarray(mask), top_k))
    for index in np.ndindex(ROWS, NODES):
        seen = np.flatnonzero(mask[index])
        best = sorted(seen, key=lambda i: (-scores[index][i], i))[:top_k]
        assert np.flatnonzero(found[index]).tolist() == sorted(best)


def test_a_choice_does_not_depend_on_what_is_masked():
    """As a chain's nodes and a tree's: the same ancestors in other slots."""
    scores = drawn(1, 1, WIDTH).round()  # with ties
    apart = np.sort(np.random.default_rng(1).choice(3 * WIDTH, WIDTH, replace=False))
    wide = drawn(1, 1, 3 * WIDTH, seed=4).at[:, :, apart].set(scores)
    mask = jnp.zeros((1, 1, 3 * WIDTH), bool).at[:, :, apart].set(True)
    found = indexer.highest(wide, mask, 7)
    dense = indexer.highest(scores, jnp.ones((1, 1, WIDTH), bool), 7)
    np.testing.assert_array_equal(found[:, :, apart], dense)
    assert int(found.sum()) == 7


MUTATIONS = {  # of what no config says
    "pairs of neighbours are turned": (
        "turn",
        lambda rope, x, angles: turn(dataclasses.replace(rope, paired=True), x, angles),
    ),
    "nothing is turned": ("turn", lambda rope, x, angles: x),
    "the lowest are chosen": (
        "highest",
        lambda scores, mask, top_k: highest(-scores, mask, top_k),
    ),
}
highest = indexer.highest


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_no_config_says_matters_too(name, tmp_path, monkeypatch):
    source, expected = tiny.reference("deepseek-v32")
    config, _ = read_config(tiny.save(source, tmp_path))
    params = load_params(tmp_path, config)
    assert error(read(config, params, (40,)), expected) < TOLERANCE
    monkeypatch.setattr(indexer, *MUTATIONS[name])
    assert error(read(config, params, (40,)), expected) > CLEARLY


def test_products_that_are_not_near_add_nothing(monkeypatch):
    """The mutation: without relu, far positions count."""
    query, keys = drawn(ROWS, NODES, HEADS, DIM), drawn(ROWS, 1, WIDTH, DIM, seed=2)
    weights = jnp.ones((ROWS, NODES, HEADS))
    right = ops.index_scores(query, keys, weights)
    assert float(right.min()) >= 0
    monkeypatch.setattr(jax.nn, "relu", lambda x: x)
    wrong = FORMS["score_positions"](query, keys[:, 0], weights)
    assert float(wrong.min()) < 0
