"""Gated activations: right in every type and shape, and of the same bits in any company."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import kernels
from specjax.core import ops
from tests.kernels.numbers import TYPES, draw, spacing, wide

SHAPES = ((1, 2), (1, 32), (2, 10), (3, 34), (40, 96), (300, 130))


def swiglu(gate, up):
    return gate / (1 + np.exp(-gate)) * up


def geglu(gate, up):
    return gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up


def clipped_swiglu(gate, up):
    gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
    return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


KERNELS = {  # the kernel, in float64, the fusible op, its plain form of two halves
    "swiglu": (kernels.swiglu, swiglu, ops.gate_rows, ops._gate),
    "geglu": (kernels.geglu, geglu, ops.gelu_gate_rows, ops._gelu_gate),
    "clipped": (
        *(kernels.clipped_swiglu, clipped_swiglu),
        *(ops.clipped_gate_rows, ops._clipped_gate),
    ),
}


@pytest.fixture(params=KERNELS)
def forms(request):
    return KERNELS[request.param]


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_and_shape_is_that_of_float64(dtype, forms):
    kernel, exact, *_ = forms
    for shape in SHAPES:
        gate_up = 4 * draw(1, shape, dtype)
        found = kernel(gate_up)
        assert found.dtype == gate_up.dtype
        expected = exact(*np.split(wide(gate_up), 2, axis=1))
        np.testing.assert_allclose(wide(found), expected, rtol=2e-6 + spacing(dtype), atol=3e-6)


def test_large_gates_neither_overflow_nor_vanish(forms):
    kernel, _, _, plain = forms
    gates = jnp.asarray([-1e10, -200.0, -80.0, -0.0, 0.0, 80.0, 200.0, 1e10, jnp.nan])
    gate_up = jnp.concatenate([gates, jnp.ones(9)])[None]
    halves = jnp.split(gate_up, 2, axis=-1)
    np.testing.assert_allclose(kernel(gate_up), plain(*halves), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_row_has_the_same_bits_in_any_company(dtype, forms):
    kernel, *_ = forms
    gate_up = draw(1, (600, 154), dtype)
    expected = np.asarray(kernel(gate_up))
    for size in (1, 2, 17, 599):
        for start in (0, 600 - size):
            some = slice(start, start + size)
            np.testing.assert_array_equal(kernel(gate_up[some]), expected[some])


def test_gradients_and_vmap_are_those_of_the_plain_form(forms):
    *_, op, of_halves = forms
    gate_up = draw(1, (3, 6, 20))

    def plain(gate_up):
        return of_halves(*jnp.split(gate_up, 2, axis=-1))

    def slope(form):
        return jax.jit(jax.grad(lambda x: jnp.sin(form(x)).sum()))(gate_up[0])

    np.testing.assert_array_equal(slope(op), slope(plain))
    ours, theirs = (jax.jit(jax.vmap(form))(gate_up) for form in (op, plain))
    np.testing.assert_array_equal(ours, theirs)
