"""Rotary position embedding: right in every type and shape, and of the same bits in any company."""

import jax
import numpy as np
import pytest

from specjax import kernels
from specjax.core import ops
from tests.kernels.numbers import TYPES, draw, spacing, wide

SHAPES = ((1, 1, 2), (3, 4, 16), (2, 1, 34), (70, 6, 64), (5, 3, 250))


def example(shape, dtype):
    rows, _, size = shape
    angle = 100 * draw(1, (rows, size // 2))
    return draw(0, shape, dtype), *(f(angle).astype(dtype) for f in (jax.numpy.cos, jax.numpy.sin))


def exact(x, cos, sin):
    x, cos, sin = wide(x), wide(cos)[:, None], wide(sin)[:, None]
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_type_and_shape_is_turned_as_in_float64(shape, dtype):
    inputs = example(shape, dtype)
    found = kernels.rotate(*inputs)
    assert found.dtype == inputs[0].dtype
    most = float(np.abs(wide(inputs[0])).max())
    bound = max(spacing(dtype), 2**-22)
    np.testing.assert_allclose(wide(found), exact(*inputs), rtol=bound, atol=2**-22 * most)
    plain = ops._rotate(*inputs)
    np.testing.assert_allclose(wide(plain), wide(found), atol=4 * bound * most)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_row_has_the_same_bits_alone(dtype):
    x, cos, sin = example((70, 6, 64), dtype)
    together = np.asarray(kernels.rotate(x, cos, sin))
    for row in range(0, 70, 9):
        at = slice(row, row + 1)
        np.testing.assert_array_equal(kernels.rotate(x[at], cos[at], sin[at]), together[at])
