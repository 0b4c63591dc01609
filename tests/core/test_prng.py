"""The generator of a row's noise: every number is JAX's own (the other: simulate/test_noise)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.prng import THREEFRY

WORDS = np.random.default_rng(0).integers(0, 2**32, (6, 2), dtype=np.uint32)
OURS = jax.random.wrap_key_data(jnp.asarray(WORDS), impl=THREEFRY)
JAXS = jax.random.wrap_key_data(jnp.asarray(WORDS), impl="threefry2x32")


def same(function):
    for one, other in zip(OURS, JAXS, strict=True):
        np.testing.assert_array_equal(function(one), function(other))


@pytest.mark.parametrize("data", [0, 1, 77, 2**31, 2**32 - 1])
def test_addresses_are_jaxs(data):
    same(lambda key: jax.random.key_data(jax.random.fold_in(key, data)))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5, 2)])
@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint16, jnp.uint32])
def test_bits_are_jaxs(shape, dtype):
    same(lambda key: jax.random.bits(key, shape, dtype))


def test_everything_made_of_them_is_jaxs():
    same(lambda key: jax.random.key_data(jax.random.split(key, (2, 3))))
    same(lambda key: jax.random.normal(jax.random.fold_in(key, 5), (4, 3)))
    same(lambda key: jax.jit(lambda k: jax.random.uniform(jax.random.fold_in(k, 5), (9,)))(key))
    for seed in (0, 3, 2**31 - 1):
        words = jax.random.key_data(jax.random.key(seed, impl=THREEFRY))
        np.testing.assert_array_equal(words, jax.random.key_data(jax.random.key(seed)))


def test_words_of_64_bits_are_refused():
    with jax.enable_x64(True), pytest.raises(ValueError, match="8, 16 or 32 bits, not 64"):
        jax.random.bits(OURS[0], (4,), jnp.uint64)
