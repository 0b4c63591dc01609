"""Random generators as JAX key types; and Threefry-2x32, JAX's own, with its rounds written out.

JAX keeps those rounds in loops on a CPU. Three such loops stand in every draw of addressed noise
(two find the key, one makes the bits), and a draw in every program that may sample: noise of
[4, 5, 2048] took 0.9 s of CPU time to compile and 0.24 ms to run so, and 0.2 s and 0.17 ms as one
chain of operations on words, which are the same numbers. Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3".
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = 0x1BD11BDA
WORDS = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}


def generator(name: str, seed: Callable, fold_in: Callable, hash_index: Callable):
    """Make a key type of what is a generator's own. A key is two words [2] of uint32.

    ``seed(value)`` and ``fold_in(words, data)``, the key of an address, return words;
    ``hash_index(words, index)`` returns a random word for every index. Drawing raises ValueError
    for 64-bit words.
    """

    def split(words, shape: tuple[int, ...]):
        index = jnp.arange(math.prod(shape), dtype=jnp.uint32)
        return jax.vmap(fold_in, (None, 0))(words, index).reshape(*shape, 2)

    def random_bits(words, width: int, shape: tuple[int, ...]):
        if width not in WORDS:
            raise ValueError(f"this generator makes words of 8, 16 or 32 bits, not {width}")
        index = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
        return hash_index(words, index).astype(WORDS[width])

    return define_prng_impl(
        key_shape=(2,), seed=seed, split=split, random_bits=random_bits, fold_in=fold_in, name=name
    )


def encrypt(words, counter):
    """Hash a counter of one word (the other is 0) under a key of two words, in 20 rounds."""
    keys = words[0], words[1], words[0] ^ words[1] ^ jnp.uint32(PARITY)
    first, second = keys[0], keys[1] + counter
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            first = first + second
            second = first ^ ((second << distance) | (second >> (32 - distance)))
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return first, second


def seed(value):
    """Make Threefry's words from a seed of 32 bits, as JAX does."""
    word = jnp.asarray(value).astype(jnp.uint32)
    return jnp.stack([jnp.zeros_like(word), word])


def fold_in(words, data):
    """Derive Threefry's key of an address."""
    return jnp.stack(encrypt(words, jnp.asarray(data).astype(jnp.uint32)))


def hash_index(words, index):
    """Return Threefry's word for every index."""
    first, second = encrypt(words, index)
    return first ^ second


THREEFRY = generator("threefry", seed, fold_in, hash_index)
