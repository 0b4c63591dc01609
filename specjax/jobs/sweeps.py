"""Sweeps of ``simulate.serving`` over many parameters, in parts that processes share."""

import hashlib
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

from specjax.jobs.parts import Parts, do_parts
from specjax.simulate.policy import Policy
from specjax.simulate.serving import RANKS, Costs, Served, serving
from specjax.simulate.workload import Workload
from specjax.theory.arrays import Scalar


def sweep(
    folder: Path,
    workload: Workload,
    costs: Costs,
    policy: Policy,
    num_slots: int,
    *,
    part_size: int = 64,
    shard: str | None = None,
    num_seeds: int | None = None,
    seed: int = 0,
    kv_budget: Scalar = np.inf,
) -> Served | None:
    """Return ``simulate.serving`` of many parameters, computed part by part into a folder.

    A part that exists is not computed again: a call that was killed goes on, and with ``shard``
    "I/N" any number of processes share one folder. Parts are of fixed size, so that every number
    of processes gives the same bits.

    Args:
        part_size: of the leading axis [P] that some leaves of workload, costs and policy have.
        shard: I/N, this process's share; None: all parts.

    The other arguments are those of ``serving``.

    Returns:
        The whole result, or None while other processes' parts are missing.

    Raises:
        ValueError: no leaf has a leading axis, two have different ones, or the folder is another
            sweep's.
    """
    if part_size < 1:
        raise ValueError(f"part_size must be at least 1, got {part_size}.")
    given = jax.tree.map(np.asarray, (workload, costs, policy))
    swept = jax.tree.map(lambda leaf, rank: leaf.ndim > rank, given, RANKS)
    sizes = {
        len(leaf)
        for leaf, many in zip(jax.tree.leaves(given), jax.tree.leaves(swept), strict=True)
        if many
    }
    if len(sizes) != 1:
        raise ValueError(f"the leading axes must have one size, got {sorted(sizes)}.")
    (size,) = sizes
    facts = {"sweep": digest((given, num_slots, num_seeds, seed, kv_budget)), "size": size}
    parts = Parts(folder, -(-size // part_size), {**facts, "part_size": part_size}, ".npz")

    def write(part: int, file: IO[bytes]) -> None:
        start = part * part_size
        index = np.minimum(np.arange(start, start + part_size), size - 1)  # the last one is padded
        own: tuple[Any, Any, Any] = jax.tree.map(
            lambda leaf, many: leaf[index] if many else leaf, given, swept
        )
        limits = {"num_seeds": num_seeds, "seed": seed, "kv_budget": kv_budget}
        np.savez(file, **serving(*own, num_slots, **limits)._asdict())

    if do_parts(parts, write, shard):
        return None
    axis = 0 if num_seeds is None else 1
    found = []
    for part in range(parts.num_parts):
        with np.load(parts.file(part)) as loaded:
            found.append([loaded[name] for name in Served._fields])
    whole = [np.concatenate(one, axis) for one in zip(*found, strict=True)]
    return Served(*(one.take(range(size), axis) for one in whole))


def digest(values: Any) -> str:
    """Return a hash of arrays and numbers."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(values, is_leaf=lambda one: one is None):
        array = np.asarray(np.nan if leaf is None else leaf)
        found.update(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
    return found.hexdigest()[:16]
