"""Products with a matrix per row: right, only what is asked for is read, of the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import kernels
from specjax.core import ops
from tests.kernels.numbers import PAIRS, draw, spacing, wide

COUNTS = ([1], [0, 3], [2, 0, 5, 1], [0, 0, 130, 0, 7, 100])


@pytest.mark.parametrize(("weight", "x"), PAIRS)
def test_every_row_is_multiplied_by_its_own_matrix(weight, x):
    for counts in COUNTS:
        rows = draw(1, (sum(counts), 37), x)
        stack = draw(2, (len(counts), 21, 37), weight)
        found = kernels.grouped_linear(rows, stack, jnp.asarray(counts))
        assert found.dtype == rows.dtype
        own = np.repeat(np.arange(len(counts)), counts)
        exact = np.einsum("pi,poi->po", wide(rows), wide(stack)[own])
        tolerance = 1e-5 + spacing(x)
        np.testing.assert_allclose(wide(found), exact, rtol=tolerance, atol=20 * tolerance)


@pytest.mark.parametrize(("weight", "x"), PAIRS)
def test_a_row_has_the_bits_of_linear_in_any_company(weight, x):
    counts = [3, 0, 98, 1, 30]
    rows, stack = draw(1, (sum(counts), 77), x), draw(2, (len(counts), 45, 77), weight)
    found = np.asarray(kernels.grouped_linear(rows, stack, jnp.asarray(counts)))
    for row, own in enumerate(np.repeat(np.arange(len(counts)), counts)):
        alone = kernels.linear(rows[row : row + 1], stack[own])[0]
        np.testing.assert_array_equal(alone, found[row])


def example(tokens: int, seed: int = 0):
    """Draw tokens, three experts of eight for each, and the experts, with biases."""
    size, wide_size, count = 24, 20, 8
    rng = np.random.default_rng(seed)
    chosen = jnp.asarray(np.stack([rng.permutation(count)[:3] for _ in range(tokens)]), jnp.int32)
    weights = jnp.asarray(rng.random((tokens, 3)), jnp.float32)
    inner = [(draw(i, (count, wide_size, size)), draw(i + 9, (count, wide_size))) for i in (1, 2)]
    outer = draw(3, (count, size, wide_size)), draw(4, (count, size))
    return draw(seed + 5, (tokens, size)), chosen, weights, *inner, outer


@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
def test_experts_are_the_weighted_sum_of_gated_mlps(activation):
    x, chosen, weights, *stacks = example(11)
    found = ops.experts(x, chosen, weights, *stacks, activation=activation)
    for row in range(11):
        total = np.zeros(24, np.float32)
        for expert, weight in zip(chosen[row], weights[row], strict=True):
            (gate, up, down) = [(matrix[expert], bias[expert]) for matrix, bias in stacks]
            both = jnp.concatenate([m @ x[row] + b for m, b in (gate, up)])
            y = down[0] @ ops.ACTIVATIONS[activation](both) + down[1]
            total += np.asarray(y * weight)
        np.testing.assert_allclose(found[row], total, rtol=2e-4, atol=2e-4)


def test_a_token_s_experts_have_the_same_bits_in_any_company():
    x, chosen, weights, *stacks = example(40)
    expected = np.asarray(ops.experts(x, chosen, weights, *stacks))
    for size in (1, 2, 7, 39):
        for start in (0, 40 - size):
            some = slice(start, start + size)
            found = ops.experts(x[some], chosen[some], weights[some], *stacks)
            np.testing.assert_array_equal(found, expected[some])


def test_an_expert_that_is_not_chosen_is_not_read():
    x, chosen, weights, *stacks = example(5)
    chosen = jnp.where(chosen == 6, 7, chosen)
    expected = ops.experts(x, chosen, weights, *stacks)
    poisoned = [(matrix.at[6].set(jnp.nan), bias.at[6].set(jnp.nan)) for matrix, bias in stacks]
    np.testing.assert_array_equal(ops.experts(x, chosen, weights, *poisoned), expected)
    chosen = chosen.at[0, 0].set(6)
    assert jnp.isnan(ops.experts(x, chosen, weights, *poisoned)[0]).all()


def test_gradients_are_those_of_the_plain_form():
    rows, stack, counts = draw(1, (9, 12)), draw(2, (4, 6, 12)), jnp.asarray([3, 0, 5, 1])

    def slopes(form):
        def loss(rows, stack):
            return jnp.sin(form(rows, stack, counts)).sum()

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(rows, stack)

    for ours, plain in zip(slopes(ops.grouped), slopes(ops._grouped), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
