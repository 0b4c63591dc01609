"""Attention of bfloat16 queries, by tiles where there are any: near, and of the same bits alone."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import kernels
from specjax.core import ops
from specjax.kernels import amx, amx_attention
from tests.kernels.numbers import draw, wide
from tests.kernels.test_attention import exact, example

SHAPES = (  # B, N, H, key heads, window, size, size of values
    *((1, 1, 6, 2, 70, 64, 64), (2, 5, 6, 2, 300, 64, 64), (1, 40, 16, 8, 200, 128, 128)),
    *((2, 3, 16, 1, 130, 576, 512), (1, 33, 4, 4, 64, 32, 16), (3, 2, 20, 1, 33, 32, 96)),
)


def asked(shape, seed=0):
    query, *cache = example(shape, "bfloat16", seed)
    return query.astype("bfloat16"), *cache


def test_tiles_are_used_exactly_where_sizes_and_dtypes_suit():
    has = amx.has_amx()
    assert amx_attention.can_attend("bfloat16", "uint16", 64, 16) == has
    assert amx_attention.can_attend("bfloat16", "bfloat16", 32, 512) == has
    for query, cache, size, size_out in (
        *(("float32", "bfloat16", 64, 64), ("bfloat16", "float32", 64, 64)),
        *(("bfloat16", "bfloat16", 48, 64), ("bfloat16", "bfloat16", 64, 24)),
    ):
        assert not amx_attention.can_attend(query, cache, size, size_out)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_are_rounded_once_to_bfloat16(shape):
    inputs = asked(shape)
    found = kernels.attention(*inputs)
    assert found.dtype == jnp.bfloat16
    most = float(np.abs(wide(inputs[2])).max())
    np.testing.assert_allclose(wide(found), exact(*inputs), rtol=2**-8, atol=2**-8 * most)
    average = np.abs(wide(found) - exact(*inputs)).mean()
    assert average < 2**-10 * most
    assert not np.asarray(found)[~np.asarray(inputs[3]).any(axis=-1)].any()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_sinks", [False, True])
def test_a_row_has_the_same_bits_alone(shape, has_sinks):
    query, keys, values, mask = asked(shape)
    causal = np.arange(shape[4]) <= np.arange(shape[1])[:, None] + shape[4] - shape[1]
    sinks = 3 * draw(7, (shape[2],)) if has_sinks else None
    for shown in (mask, jnp.asarray(np.broadcast_to(causal, mask.shape))):
        together = np.asarray(kernels.attention(query, keys, values, shown, sinks))
        for b in range(shape[0]):
            row = slice(b, b + 1)
            for n in range(0, shape[1], 6):
                at = (row, slice(n, n + 1))
                alone = kernels.attention(query[at], keys[row], values[row], shown[at], sinks)
                np.testing.assert_array_equal(alone, together[at])


@pytest.mark.skipif(
    not amx.has_amx(), reason="without AMX sums are float32: rounding to bfloat16 hides their order"
)
def test_a_wrong_order_of_sums_would_be_seen():
    """The last bits of the tiles' sums do depend on the order: the test above can fail."""
    query, keys, values, _ = asked((1, 1, 6, 2, 300, 64, 64))
    mask = jnp.ones((1, 1, 300), bool)
    forth = kernels.attention(query, keys, values, mask)
    back = kernels.attention(query, keys[:, :, ::-1], values[:, :, ::-1], mask)
    assert (np.asarray(forth) != np.asarray(back)).any()


@pytest.mark.parametrize("window", [64, 131, 400])
def test_what_is_seen_decides_every_bit_not_where_it_lies(window):
    query, keys, values, mask = asked((2, 5, 4, 2, 50, 64, 32))
    expected = kernels.attention(query, keys, values, mask)
    slots = np.sort(np.random.default_rng(7).choice(window, 50, replace=False))
    for places in (slots, np.arange(50), np.arange(window - 50, window)):
        wider_keys, wider_values = (
            jnp.full((*leaf.shape[:2], window, leaf.shape[3]), jnp.nan, leaf.dtype)
            .at[:, :, places]
            .set(leaf)
            for leaf in (keys, values)
        )
        shown = jnp.zeros((2, 5, window), bool).at[:, :, places].set(mask)
        np.testing.assert_array_equal(
            kernels.attention(query, wider_keys, wider_values, shown), expected
        )
        bits = ops.to_bits(wider_keys), ops.to_bits(wider_values)
        np.testing.assert_array_equal(ops.attention(query, *bits, shown), expected)


@pytest.mark.parametrize("window", [64, 130])
def test_a_ring_has_the_bits_of_its_positions_in_order(window):
    query, keys, values, mask = asked((3, 5, 6, 2, window, 64, 64))
    expected = kernels.attention(query, keys, values, mask)
    first = jnp.asarray([0, 5, window - 1], jnp.int32)
    keys, values, mask = (
        jnp.stack([jnp.roll(row, int(by), axis=1) for row, by in zip(leaf, first, strict=True)])
        for leaf in (keys, values, mask)
    )
    found = kernels.attention(query, keys, values, mask, None, first)
    np.testing.assert_array_equal(found, expected)
