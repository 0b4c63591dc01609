"""Rows of a table, by number: as XLA reads them, but for numbers that are out of range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core import ops
from tests.kernels.numbers import TYPES, draw, wide


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_are_those_that_were_asked_for(dtype):
    table = draw(1, (50, 37), dtype)
    index = jnp.asarray(np.random.default_rng(2).integers(0, 50, (3, 7)))
    found = ops.embed(table, index)
    assert found.dtype == table.dtype
    np.testing.assert_array_equal(wide(found), wide(table)[np.asarray(index)])


def test_a_number_out_of_range_gets_the_nearest_row():
    table = draw(1, (50, 5))
    found = ops.embed(table, jnp.asarray([-3, 50, 2**31 - 1]))
    np.testing.assert_array_equal(found, table[jnp.asarray([0, 49, 49])])


def test_gradients_and_vmap_are_those_of_the_plain_form():
    table, index = draw(1, (9, 4)), jnp.asarray([3, 3, 8])

    def slope(form):
        return jax.jit(jax.grad(lambda table: jnp.sin(form(table, index)).sum()))(table)

    np.testing.assert_array_equal(slope(ops.take_rows), slope(ops._take_rows))
    several = jnp.stack([index, index + 0])
    found = jax.jit(jax.vmap(ops.take_rows, (None, 0)))(table, several)
    np.testing.assert_array_equal(found, table[several])
