"""Two array libraries, one formula: NumPy in float64, JAX where something is traced.

The formulas take numbers, lists and arrays, and broadcast them. Where none of these is a JAX
array they compute in NumPy, in float64, whatever JAX is configured to; where one is, they
compute in JAX at its own precision, so that jit, vmap and grad go through them.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

if TYPE_CHECKING:
    Real = Any
    Scalar = Any
else:
    Scalar = float | int | np.number  # one number
    Real = ArrayLike | Sequence  # a number, a list of numbers or an array
Value = Any  # a NumPy float64 or JAX array of the broadcast shape; a scalar for scalars

SUM_TOLERANCE = 1e-5  # rows of float32 probabilities sum to 1 within this


def arrays(*values: Real) -> tuple[Any, ...]:
    """Return the library to compute with, then the values as its arrays, of equal rank.

    Equal rank because explicit broadcasting survives ``jax_numpy_rank_promotion="raise"``.
    """
    library = library_of(*values)
    dtype = jnp.result_type(float) if library is jnp else np.float64
    made = [library.asarray(value, dtype) for value in values]
    rank = max(one.ndim for one in made)
    return library, *(one.reshape((1,) * (rank - one.ndim) + one.shape) for one in made)


def library_of(*values: Real) -> ModuleType:
    """Return jax.numpy if one of the values is a JAX array, else numpy."""
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


def require(name: str, values: Real, low: Scalar = -np.inf, high: Scalar = np.inf) -> None:
    """Raise ValueError unless every value lies in [low, high]; traced values pass unseen."""
    if isinstance(values, Tracer):
        return
    seen = np.asarray(values, np.float64)
    bad = ~((seen >= low) & (seen <= high))
    if bad.any():
        bounds = f"in [{low:g}, {high:g}]" if high < np.inf else f"at least {low:g}"
        raise ValueError(f"{name} must be {bounds}, got {seen[bad].flat[0]:g}")


def require_numpy(**named: Any) -> None:
    """Raise TypeError, with the remedy, if a value is traced by jit, grad or vmap."""
    for name, value in named.items():
        if isinstance(value, Tracer):
            raise TypeError(
                f"{name} is traced by JAX, and this function computes in NumPy: call it outside "
                "jit, grad and vmap."
            )


def require_probs(**named: Real) -> None:
    """Raise ValueError unless every value is a probability."""
    for name, values in named.items():
        require(name, values, 0.0, 1.0)


def require_costs(**named: Real) -> None:
    """Raise ValueError unless every value is zero or positive, and not NaN."""
    for name, values in named.items():
        require(name, values, 0.0)


def require_distributions(**named: Real) -> None:
    """Raise ValueError unless every row [..., V] is a distribution: probabilities that sum to 1."""
    for name, values in named.items():
        if isinstance(values, Tracer):
            continue
        require(name, values, 0.0, 1.0 + SUM_TOLERANCE)
        sums = np.asarray(values, np.float64).sum(axis=-1)
        bad = np.abs(sums - 1.0) > SUM_TOLERANCE
        if bad.any():
            raise ValueError(f"rows of {name} must sum to 1, got {np.ravel(sums[bad])[0]:g}")
