"""The product with a stored matrix: right in every type and shape, and of the same bits."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import kernels
from specjax.core import ops
from specjax.kernels import amx
from tests.kernels.numbers import PAIRS, draw, rounding, spacing, wide

SHAPES = (  # rows, inputs, outputs
    *((1, 1, 1), (1, 64, 1), (2, 5, 3), (3, 17, 7), (5, 16, 4), (7, 40, 13)),
    *((13, 31, 6), (97, 33, 9), (193, 130, 66)),
)


@pytest.mark.parametrize(("weight", "x"), [*PAIRS, ("int8", "float32")])
def test_every_type_and_shape_is_the_product_of_float64(weight, x):
    for shape in SHAPES:
        rows, size, outputs = shape
        left, right = draw(1, (rows, size), x), draw(2, (outputs, size), weight)
        found = kernels.linear(left, right)
        assert found.dtype == left.dtype
        exact = wide(left) @ wide(right).T
        error = np.abs(wide(found) - exact)
        most = rounding(size) * (np.abs(wide(left)) @ np.abs(wide(right)).T)
        most += spacing(x) * np.abs(exact)
        assert (error <= most).all(), (shape, (error / most).max())


@pytest.mark.parametrize(
    ("weight", "x"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("int8", "float32")]
)
def test_numbers_that_are_whole_lose_nothing(weight, x):
    """Small integers: every sum is exact, so nothing may be off."""
    rng = np.random.default_rng(3)
    left = jnp.asarray(rng.integers(-2, 3, (9, 75)), x)
    right = jnp.asarray(rng.integers(-1, 2, (21, 75)), weight)  # sums below 256
    np.testing.assert_array_equal(wide(kernels.linear(left, right)), wide(left) @ wide(right).T)


@pytest.mark.parametrize(("weight", "x"), [*PAIRS, ("int8", "float32")])
def test_a_row_has_the_same_bits_in_any_company(weight, x):
    """Any number of rows, any place among them, mates that are NaN; and any number of outputs."""
    left, right = draw(1, (200, 77), x), draw(2, (45, 77), weight)
    expected = np.asarray(kernels.linear(left, right))
    for rows in (1, 2, 3, 5, 6, 7, 11, 96, 97, 192, 193):
        for start in (0, 200 - rows):
            some = slice(start, start + rows)
            found = kernels.linear(left[some], right)
            np.testing.assert_array_equal(found, expected[some])
    for outputs in (1, 2, 3, 4, 5, 9, 44):
        found = kernels.linear(left, right[:outputs])
        np.testing.assert_array_equal(found, expected[:, :outputs])
    mates = left.at[1:].set(jnp.nan)
    np.testing.assert_array_equal(kernels.linear(mates, right)[0], expected[0])


@pytest.mark.parametrize(("weight", "x"), PAIRS)
def test_a_stack_is_multiplied_matrix_by_matrix(weight, x):
    left, right = draw(1, (5, 13, 77), x), draw(2, (5, 30, 77), weight)
    found = kernels.linear(left, right)
    assert found.shape == (5, 13, 30)
    for i in range(5):
        np.testing.assert_array_equal(found[i], kernels.linear(left[i], right[i]))
    vectors = draw(3, (2, 3, 5, 77), x)
    each = ops.linear_each(vectors, right)
    exact = np.einsum("bnsi,soi->bnso", wide(vectors), wide(right))
    np.testing.assert_allclose(wide(each), exact, rtol=1e-4 + spacing(x), atol=1e-4)


@pytest.mark.skipif(not amx.has_amx(), reason="this processor has no AMX")
@pytest.mark.parametrize("x", amx.PARTS)
def test_with_and_without_amx_the_product_is_the_same_to_rounding(x, monkeypatch):
    left, right = draw(1, (200, 77), x), draw(2, (45, 77), "bfloat16")
    tiled = kernels.linear(left, right)
    monkeypatch.setattr(amx, "has_amx", lambda: False)
    test_every_type_and_shape_is_the_product_of_float64("bfloat16", x)
    test_a_row_has_the_same_bits_in_any_company("bfloat16", x)
    plain = kernels.linear(left, right)
    assert x == "bfloat16" or (np.asarray(plain) != np.asarray(tiled)).any(), "AMX was not used"
    np.testing.assert_allclose(wide(plain), wide(tiled), rtol=spacing(x), atol=2e-5)


def test_a_number_that_is_not_finite_stays_in_its_row():
    """Also where a float32 number is the sum of three parts; the largest ones do not overflow."""
    left, right = jnp.ones((4, 40)), jnp.ones((5, 40), "bfloat16")
    left = left.at[0, 3].set(jnp.inf).at[1, 38].set(jnp.nan).at[2, 0].set(3.4e38)
    found = np.asarray(kernels.linear(left, right))
    np.testing.assert_array_equal(found[0], np.inf)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[2], np.float32(3.4e38))
    np.testing.assert_array_equal(found[3], 40)


def test_rows_of_zeros_are_rows_like_others():
    """Padding: the mates of a row that is all zeros, or of negative zeros."""
    x, weight = draw(1, (40, 70)), draw(2, (21, 70))
    expected = np.asarray(kernels.linear(x, weight))
    for zeros in (0.0, -0.0):
        for some in (slice(3, 4), slice(5, 30), slice(1, 40)):
            expected_here = expected.copy()
            expected_here[some] = 0.0
            padded = x.at[some].set(zeros)
            np.testing.assert_array_equal(kernels.linear(padded, weight), expected_here)
    one = jnp.zeros((1, 70)).at[0, 69].set(1.0)
    np.testing.assert_array_equal(kernels.linear(one, weight)[0], weight[:, 69])


def test_gradients_and_vmap_are_those_of_the_plain_form():
    x, weight = draw(1, (2, 5, 24)), draw(2, (7, 24))

    def loss(multiply, x, weight):
        return jnp.sin(multiply(x, weight)).sum()

    def same(change):
        ours, plain = (jax.jit(change(form)) for form in (ops.product, ops._product))
        jax.tree.map(np.testing.assert_array_equal, ours(x[0], weight), plain(x[0], weight))

    for some in ((0, 1), 0, 1):  # the others are held still, as a target's weights are
        same(lambda form, some=some: jax.grad(lambda *args: loss(form, *args), argnums=some))
    ours, plain = (jax.jit(jax.vmap(f, (0, None)))(x, weight) for f in (ops.product, ops._product))
    np.testing.assert_array_equal(ours, plain)


def test_many_threads_at_once_get_the_same_bits():
    """Programs of several tasks share XLA's threads, and each other's while they wait."""
    multiply, look = jax.jit(kernels.linear), jax.jit(kernels.attention)
    left, right = draw(1, (50, 300)), draw(2, (1000, 300), "bfloat16")
    query, keys, values = draw(3, (4, 5, 4, 16)), *(draw(i, (4, 2, 256, 16)) for i in (4, 5))
    mask = jnp.asarray(np.random.default_rng(6).random((4, 5, 256)) < 0.8)

    def once(_) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(multiply(left, right)), np.asarray(look(query, keys, values, mask))

    expected = once(0)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(once, range(200)):
            for ours, theirs in zip(found, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)
