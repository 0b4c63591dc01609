"""Random arrays of every type, and the rounding that float32 sums may show."""

import itertools

import jax.numpy as jnp
import numpy as np

TYPES = ("float32", "bfloat16", "float16")
PAIRS = list(itertools.product(TYPES, TYPES))


def draw(seed: int, shape: tuple[int, ...], dtype: str = "float32") -> jnp.ndarray:
    """Draw normal numbers, rounded to a type; whole ones are up to a hundred or so."""
    values = np.random.default_rng(seed).normal(size=shape)
    values = 30 * values if dtype == "int8" else values
    return jnp.asarray(values, jnp.float32).astype(dtype)


def wide(x: jnp.ndarray) -> np.ndarray:
    """Return an array as float64, which holds all its numbers."""
    return np.asarray(x.astype(jnp.float32), np.float64)


def spacing(dtype: str) -> float:
    """Return how far a number may be off that is rounded to a type, relative to itself."""
    return float(jnp.finfo(dtype).eps)


def rounding(terms: int) -> float:
    """Return how far a float32 sum may be off, relative to the sum of magnitudes."""
    return (terms + 8) * 2.0**-24
