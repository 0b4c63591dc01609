"""The simulations' generator: uniform, and independent across addresses and bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import theory
from specjax.simulate.noise import mix, noise_key

WORDS = jax.random.bits(noise_key(1), (2**14,), jnp.uint32)


def fold(key, *data):
    for one in data:
        key = jax.random.fold_in(key, one)
    return key


def grid(positions, streams, size):
    """Draw uniforms at every (position, stream) of one row."""
    address = jax.vmap(jax.vmap(lambda i, s: fold(noise_key(3), i, s), (None, 0)), (0, None))
    keys = address(jnp.arange(positions), jnp.arange(streams))
    return np.asarray(jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (size,))))(keys))


def test_flipping_one_bit_flips_each_bit_half_of_the_time():
    for bit in range(32):
        changed = np.asarray(mix(WORDS) ^ mix(WORDS ^ jnp.uint32(1 << bit)))
        flips = ((changed[:, None] >> np.arange(32, dtype=np.uint32)) & 1).mean(axis=0)
        assert (np.abs(flips - 0.5) < 0.03).all()


@pytest.mark.parametrize("axis", ["position", "stream", "index"])
def test_numbers_are_uniform_along_every_part_of_an_address(axis):
    shape = {"position": (20_000, 1, 1), "stream": (1, 20_000, 1), "index": (1, 1, 20_000)}[axis]
    u = grid(*shape).ravel()
    counts = np.bincount((u * 64).astype(int), minlength=64)
    assert theory.distribution_test(counts, np.full(64, 1 / 64)).p_value > 1e-3
    for lag in (1, 2, 7):  # neighbouring pairs fill the square evenly
        pairs = (u[:-lag] * 8).astype(int) * 8 + (u[lag:] * 8).astype(int)
        counts = np.bincount(pairs, minlength=64)
        assert theory.distribution_test(counts, np.full(64, 1 / 64)).p_value > 1e-3


def test_neighbouring_addresses_share_nothing():
    u = grid(64, 4, 64)
    assert len(np.unique(u)) > 0.998 * u.size  # of 2^23 values; birthdays cost 16 of 16384
    flat = u.reshape(256, 64)
    correlation = np.corrcoef(flat)[~np.eye(256, dtype=bool)]
    assert np.abs(correlation).max() < 0.7
    assert abs(correlation.std() - 1 / np.sqrt(63)) < 0.01


def test_keys_work_as_jaxs_own_do():
    key = noise_key(7)
    several = jax.random.split(key, 5)
    assert several.shape == (5,)
    alone = jnp.stack([jax.random.uniform(one, (3,)) for one in several])
    together = jax.vmap(lambda one: jax.random.uniform(one, (3,)))(several)
    np.testing.assert_array_equal(alone, together)
    assert jax.random.bits(key, (4,), jnp.uint8).dtype == jnp.uint8
    with jax.enable_x64(True), pytest.raises(ValueError, match="8, 16 or 32 bits, not 64"):
        jax.random.bits(key, (4,), jnp.uint64)
