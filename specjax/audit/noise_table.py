"""Random keys that carry their numbers: a table of bits, looked up by the address of each draw.

A key of this kind is an address, and a table from addresses to random bits. ``fold_in`` extends the
address and a draw reads the table's row of its address, so that the shipped functions run as they
are while the caller chooses every random number that they get. Two draws get the same numbers if
and only if their keys are folded from the same data: which is what sharing noise means.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

BASE = 64  # of addresses: up to five numbers below 63 are folded in
LAST_WORD = 2**32 - 1
Block = tuple[int, int]  # an address and its first column


def folded(words: Any, data: Any) -> Any:
    """Return the words of a key with ``data`` folded into its address."""
    return words.at[0].set(words[0] * BASE + jnp.asarray(data).astype(jnp.uint32) + 1)


def no_split(words: Any, shape: Any) -> Any:
    """Raise ValueError: a split key has no address."""
    raise ValueError("a drafter or rule splits its key: use jax.random.fold_in, which names a draw")


@functools.cache
def table_generator(slots: int, columns: int) -> Any:
    """Return the implementation of keys with ``slots`` addresses of ``columns`` words each."""

    def random_bits(words, width, shape):
        number = int(np.prod(shape))
        if width != 32 or number > columns:
            raise ValueError(f"{number} words of {width} bits, of a table of {columns} of 32 bits")
        here = words[1 : 1 + slots] == words[0]
        row = words[1 + slots :].reshape(slots, columns)[jnp.argmax(here)]
        return row[:number].reshape(shape)

    return define_prng_impl(
        key_shape=(1 + slots + slots * columns,), seed=lambda seed: seed, split=no_split,
        random_bits=random_bits, fold_in=folded, name="table",
    )  # fmt: skip


def table_keys(addresses: np.ndarray, bits: np.ndarray) -> Any:
    """Return keys [R] with the table ``bits`` [R, A, C] of the addresses [A]."""
    rows, slots, columns = bits.shape
    start = np.concatenate([np.zeros(1, np.uint32), addresses.astype(np.uint32)])
    words = np.concatenate([np.tile(start, (rows, 1)), bits.reshape(rows, -1)], axis=1)
    return jax.random.wrap_key_data(
        jnp.asarray(words, jnp.uint32), impl=table_generator(slots, columns)
    )


SEEN: dict[int, int] = {}  # of one recording: the words drawn at each address


@functools.cache
def recording_generator() -> Any:
    """Return the implementation of keys that record at which addresses numbers are drawn."""

    def random_bits(words, width, shape):
        number = int(np.prod(shape))

        def record(address):
            for one in np.unique(address).tolist():
                SEEN[one] = max(SEEN.get(one, 0), number)
            return np.full(np.shape(address), 2**31, np.uint32)

        word = jax.ShapeDtypeStruct((), jnp.uint32)
        drawn = jax.pure_callback(record, word, words[0], vmap_method="broadcast_all")
        return jnp.broadcast_to(drawn, shape)

    return define_prng_impl(
        key_shape=(1,), seed=lambda seed: seed, split=no_split, random_bits=random_bits,
        fold_in=folded, name="recording",
    )  # fmt: skip


def recording_keys(rows: int) -> Any:
    """Return keys [R]; ``SEEN`` has what was drawn with them."""
    return jax.random.wrap_key_data(jnp.zeros((rows, 1), jnp.uint32), impl=recording_generator())


def bits_of_exponentials(exponentials: np.ndarray) -> np.ndarray:
    """Return the words from which ``core.sampling.exponential`` makes these numbers."""
    words = np.round(-np.expm1(-np.asarray(exponentials, float)) * 2.0**32 - 0.5)
    return words.clip(0, LAST_WORD).astype(np.uint32)


def bits_of_points(points: np.ndarray) -> np.ndarray:
    """Return the words from which JAX makes the float32 uniforms ``points / 2 ** 23``."""
    return np.asarray(points).astype(np.uint32) << np.uint32(9)


def labels_of_uniforms(uniforms: np.ndarray) -> np.ndarray:
    """Return the labels whose ``bits_of_points`` gave these uniforms."""
    return np.round(np.asarray(uniforms, float) * 2**23).astype(int)


def labels_of_exponentials(exponentials: np.ndarray) -> np.ndarray:
    """Return the labels whose ``bits_of_points`` gave these exponential numbers."""
    return np.round(-np.expm1(-np.asarray(exponentials, float)) * 2**23).astype(int)
