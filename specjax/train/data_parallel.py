"""A training step shared by all devices, of all processes: each computes some of the batch's rows.

Weights and optimizer lie whole on every device. What the batch is depends on (seed, step) alone,
not on the number of devices, so a run that was stopped goes on with another number of them.
"""

import functools
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specjax.core.types import PyTree


@functools.cache
def mesh() -> Mesh:
    """Return all devices, as axis "data"."""
    return Mesh(np.array(jax.devices()), ("data",))


def whole() -> NamedSharding:
    """Return the sharding of what every device has."""
    return NamedSharding(mesh(), PartitionSpec())


def rows() -> NamedSharding:
    """Return the sharding of a batch [B, ...]: some rows on each device."""
    return NamedSharding(mesh(), PartitionSpec("data"))


def check_divides(batch: int) -> None:
    """Raise ValueError unless every device gets as many rows of a batch."""
    if batch % mesh().size:
        raise ValueError(
            f"a batch of {batch} sequences cannot be shared by {mesh().size} devices: choose "
            f"--batch {batch + -batch % mesh().size}, or show JAX fewer devices."
        )


def replicate(tree: PyTree) -> PyTree:
    """Return arrays that all processes have, on every device."""
    return jax.tree.map(functools.partial(lay, where=whole()), tree)


def split(tree: PyTree) -> PyTree:
    """Return a batch's arrays [B, ...], which all processes have, with some rows on each device."""
    return jax.tree.map(functools.partial(lay, where=rows()), tree)


def gather(array: jax.Array) -> np.ndarray:
    """Return the whole of an array whose rows lie on the devices, in every process."""
    if array.is_fully_addressable:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def lay(value: Any, where: NamedSharding) -> jax.Array:
    """Return an array laid out; nothing is sent between processes."""
    if where.mesh.size == 1:
        return jax.device_put(value, where)
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, where, host.__getitem__)
