"""RMSNorm: right in every type and shape, and of the same bits in any company."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import kernels
from specjax.core import ops
from tests.kernels.numbers import PAIRS, TYPES, draw, spacing, wide

EPSILON = jnp.float32(1e-6)
SHAPES = ((1, 1), (1, 16), (2, 5), (3, 17), (40, 48), (700, 130))


@pytest.mark.parametrize(("weight", "x"), PAIRS)
def test_every_type_and_shape_is_the_norm_of_float64(weight, x):
    for shape in SHAPES:
        rows, scale = draw(1, shape, x), draw(2, shape[1:], weight)
        found = kernels.rms_norm(rows, scale, EPSILON)
        assert found.dtype == rows.dtype
        mean = (wide(rows) ** 2).mean(axis=1, keepdims=True) + 1e-6
        exact = wide(rows) / np.sqrt(mean) * wide(scale)
        np.testing.assert_allclose(wide(found), exact, rtol=2e-6 + spacing(x), atol=1e-7)


@pytest.mark.parametrize("x", TYPES)
def test_a_row_has_the_same_bits_in_any_company(x):
    rows, scale = draw(1, (600, 77), x), draw(2, (77,))
    expected = np.asarray(kernels.rms_norm(rows, scale, EPSILON))
    for size in (1, 2, 3, 17, 599):
        for start in (0, 600 - size):
            some = slice(start, start + size)
            np.testing.assert_array_equal(
                kernels.rms_norm(rows[some], scale, EPSILON), expected[some]
            )
    mates = rows.at[1:].set(jnp.nan)
    np.testing.assert_array_equal(kernels.rms_norm(mates, scale, EPSILON)[0], expected[0])


def test_rows_are_summed_up_in_one_order():
    x = draw(1, (70, 333))
    expected = np.asarray(ops.row_sums(x))
    np.testing.assert_allclose(expected, wide(x).sum(axis=1), rtol=1e-5, atol=1e-4)
    for size in (1, 2, 7, 69):
        np.testing.assert_array_equal(ops.row_sums(x[:size]), expected[:size])
        np.testing.assert_array_equal(ops.softmax(x[:size]), ops.softmax(x)[:size])
        np.testing.assert_array_equal(ops.log_softmax(x[:size]), ops.log_softmax(x)[:size])


def test_gradients_and_vmap_are_those_of_the_plain_form():
    x, scale = draw(1, (3, 6, 20)), draw(2, (20,))

    def slopes(form):
        def loss(x, scale):
            return jnp.sin(form(x, scale, EPSILON)).sum()

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(x[0], scale)

    jax.tree.map(np.testing.assert_array_equal, slopes(ops.scale_rows), slopes(ops._rms_norm))
    ours, plain = (
        jax.jit(jax.vmap(form, (0, None, None)))(x, scale, EPSILON)
        for form in (ops.scale_rows, ops._rms_norm)
    )
    np.testing.assert_array_equal(ours, plain)
