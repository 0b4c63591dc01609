"""Attention over a cache: right in every type and shape, of the same bits wherever keys lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import kernels
from specjax.core import ops
from tests.kernels.numbers import TYPES, draw, wide

SHAPES = (  # B, N, H, key heads, window, size, size of values
    *((1, 1, 1, 1, 1, 1, 1), (1, 1, 4, 2, 15, 8, 8), (2, 3, 4, 4, 16, 16, 16)),
    *((3, 5, 6, 2, 17, 24, 20), (2, 7, 8, 1, 130, 64, 40), (1, 33, 2, 2, 300, 10, 33)),
    *((1, 4, 10, 2, 70, 16, 16), (2, 3, 4, 2, 33, 128, 128), (1, 2, 4, 2, 20, 16, 300)),
)


def exact(query, keys, values, mask) -> np.ndarray:
    """Attend in float64; rows that see nothing get zeros."""
    query, keys, values = (wide(leaf) for leaf in (query, keys, values))
    group = query.shape[2] // keys.shape[1]
    keys, values = keys.repeat(group, axis=1), values.repeat(group, axis=1)
    scores = np.einsum("bnhd,bhwd->bhnw", query, keys) / np.sqrt(query.shape[3])
    seen = np.asarray(mask)[:, None]
    highest = np.where(seen, scores, -np.inf).max(axis=-1, keepdims=True, initial=-1e300)
    weights = np.where(seen, np.exp(np.where(seen, scores, highest) - highest), 0.0)
    total = np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
    return np.einsum("bhnw,bhwe->bnhe", weights / total, values)


def example(shape, dtype="float32", seed=0):
    """Draw a cache, queries, and a mask in which some rows see nothing, one key, or all."""
    B, N, H, shared, window, size, size_out = shape
    keys = draw(seed + 1, (B, shared, window, size), dtype)
    values = draw(seed + 2, (B, shared, window, size_out), dtype)
    mask = np.random.default_rng(seed + 3).random((B, N, window)) < 0.6
    mask[0, 0] = True
    if N > 2:
        mask[0, 1] = False
        mask[0, 2] = np.arange(window) == window - 1
    return draw(seed, (B, N, H, size)), keys, values, jnp.asarray(mask)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_type_and_shape_attends_as_float64(shape, dtype):
    inputs = example(shape, dtype)
    found = kernels.attention(*inputs)
    assert found.dtype == inputs[0].dtype
    np.testing.assert_allclose(wide(found), exact(*inputs), rtol=2e-5, atol=2e-6)
    unseeing = ~np.asarray(inputs[3]).any(axis=-1)
    assert not np.asarray(found)[unseeing].any()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_sink_is_one_more_score_with_a_value_of_zero(shape):
    query, keys, values, mask = example(shape)
    sinks = 3 * draw(7, (query.shape[2],))
    found = kernels.attention(query, keys, values, mask, sinks)
    plain = ops._attention(query, keys, values, mask, sinks)
    sees = np.asarray(mask).any(axis=-1)
    np.testing.assert_allclose(found[sees], plain[sees], rtol=2e-5, atol=2e-6)
    assert not np.asarray(found)[~sees].any()
    group = query.shape[2] // keys.shape[1]
    scores = np.einsum("bnhd,bhwd->bhnw", wide(query), wide(keys).repeat(group, axis=1))
    scores = np.where(np.asarray(mask)[:, None], scores / np.sqrt(query.shape[3]), -np.inf)
    sink = np.broadcast_to(np.asarray(sinks)[None, :, None, None], (*scores.shape[:3], 1))
    both = np.exp(np.concatenate([scores, sink], axis=-1))
    weights = (both / both.sum(axis=-1, keepdims=True))[..., :-1]
    exact_sums = np.einsum("bhnw,bhwe->bnhe", weights, wide(values).repeat(group, axis=1))
    np.testing.assert_allclose(wide(found), exact_sums, rtol=2e-5, atol=2e-6)


def test_rows_with_sinks_have_the_same_bits_in_any_company():
    query, keys, values, mask = example((3, 5, 6, 2, 17, 24, 20))
    sinks = 3 * draw(7, (6,))
    expected = np.asarray(kernels.attention(query, keys, values, mask, sinks))
    for row in range(3):
        some = slice(row, row + 1)
        one = kernels.attention(query[some], keys[some], values[some], mask[some], sinks)
        np.testing.assert_array_equal(one, expected[some])
        for node in range(5):
            at = slice(node, node + 1)
            one = kernels.attention(
                query[some, at], keys[some], values[some], mask[some, at], sinks
            )
            np.testing.assert_array_equal(one, expected[some, at])


@pytest.mark.parametrize("dtype", TYPES)
def test_the_result_is_rounded_once_to_the_type_of_the_query(dtype):
    query, *cache = example((2, 3, 6, 2, 40, 16, 16), dtype)
    asked = query.astype(dtype)
    found = kernels.attention(asked, *cache)
    assert found.dtype == asked.dtype
    wider = kernels.attention(asked.astype(jnp.float32), *cache)
    np.testing.assert_array_equal(wide(found), wide(wider.astype(dtype)))


def test_large_scores_neither_overflow_nor_vanish():
    query, keys, values, mask = example((2, 3, 4, 4, 100, 16, 16))
    inputs = 300 * query, keys, values, mask
    np.testing.assert_allclose(kernels.attention(*inputs), exact(*inputs), rtol=1e-3, atol=1e-4)


def test_a_cache_of_bits_is_one_of_bfloat16():
    query, keys, values, mask = example((2, 3, 4, 2, 40, 16, 16), "bfloat16")
    found = ops.attention(query, ops.to_bits(keys), ops.to_bits(values), mask)
    np.testing.assert_array_equal(found, kernels.attention(query, keys, values, mask))


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_seen_decides_every_bit_not_where_it_lies(dtype):
    """The same keys in the same order, at other slots of a wider cache full of NaN."""
    query, keys, values, mask = example((2, 5, 4, 2, 50, 24, 24), dtype)
    expected = kernels.attention(query, keys, values, mask)
    rng = np.random.default_rng(7)
    for window in (50, 64, 131, 400):
        slots = np.sort(rng.choice(window, 50, replace=False))
        wider = [
            jnp.full((*leaf.shape[:2], window, leaf.shape[3]), jnp.nan, dtype)
            .at[:, :, slots]
            .set(leaf)
            for leaf in (keys, values)
        ]
        shown = jnp.zeros((2, 5, window), bool).at[:, :, slots].set(mask)
        np.testing.assert_array_equal(kernels.attention(query, *wider, shown), expected)


@pytest.mark.parametrize("window", [17, 50, 130])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_a_ring_has_the_bits_of_its_positions_in_order(window, has_sinks):
    """Each row's positions begin at another slot, and go on around the end."""
    query, *cache = example((3, 5, 6, 2, window, 24, 20))
    sinks = 3 * draw(7, (6,)) if has_sinks else None
    first = jnp.asarray([0, 5, window - 1], jnp.int32)
    keys, values, mask = (
        jnp.stack([jnp.roll(row, int(at), axis=1) for row, at in zip(leaf, first, strict=True)])
        for leaf in cache
    )
    in_order = query, *cache
    expected = np.asarray(kernels.attention(*in_order, sinks=sinks))
    found = ops.ring_attention(query, keys, values, mask, first, sinks)
    np.testing.assert_array_equal(found, expected)
    unordered = np.asarray(kernels.attention(query, keys, values, mask, sinks))
    assert (unordered[1:] != expected[1:]).any()  # the law needs the order


@pytest.mark.parametrize("dtype", TYPES)
def test_a_row_has_the_same_bits_in_any_company(dtype):
    """Any batch, any number of nodes, mates that are NaN, heads alone."""
    query, keys, values, mask = example((6, 7, 4, 2, 90, 16, 16), dtype)
    expected = np.asarray(kernels.attention(query, keys, values, mask))
    for rows in (slice(0, 1), slice(2, 5), slice(5, 6)):
        found = kernels.attention(query[rows], keys[rows], values[rows], mask[rows])
        np.testing.assert_array_equal(found, expected[rows])
    for nodes in (slice(0, 1), slice(1, 4), slice(6, 7)):
        found = kernels.attention(query[:, nodes], keys, values, mask[:, nodes])
        np.testing.assert_array_equal(found, expected[:, nodes])
    mates = query.at[1:].set(jnp.nan), keys.at[1:].set(jnp.nan), values.at[1:].set(jnp.nan), mask
    np.testing.assert_array_equal(kernels.attention(*mates)[0], expected[0])
    second = kernels.attention(query[:, :, 2:], keys[:, 1:], values[:, 1:], mask)
    np.testing.assert_array_equal(second, expected[:, :, 2:])


def test_gradients_and_vmap_are_those_of_the_plain_form():
    query, keys, values, mask = example((2, 3, 4, 2, 20, 8, 8))

    def slopes(form):
        def loss(*inputs):
            return jnp.sin(form(*inputs, mask)).sum()

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(query, keys, values)

    ours, plain = slopes(ops.attend), slopes(ops._attention)
    jax.tree.map(np.testing.assert_array_equal, ours, plain)
    several = [jnp.stack([leaf, leaf]) for leaf in (query, keys, values, mask)]
    ours, plain = (jax.jit(jax.vmap(form))(*several) for form in (ops.attend, ops._attention))
    np.testing.assert_array_equal(ours, plain)
