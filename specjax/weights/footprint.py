"""What a checkpoint will take in memory, from its headers alone."""

import math
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from specjax.core.types import PyTree
from specjax.models.build import build_target
from specjax.models.config import ModelConfig
from specjax.weights.int8 import stays_int8
from specjax.weights.load import check_headers, stored_leaf
from specjax.weights.quantization import read_scheme

UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


class Footprint(NamedTuple):
    """Sizes in bytes of one checkpoint's weights."""

    method: str | None  # of quantization, for people
    stored: int  # in files
    weights: int  # in memory
    largest: int  # of them, the largest
    dtypes: tuple[str, ...]  # of weights in memory

    def __str__(self):
        form = f" ({self.method})" if self.method else ""
        form += ", dequantized" if self.method and "int8" not in self.dtypes else ""
        dtypes = " and ".join(self.dtypes)
        return f"{readable(self.stored)} in files{form}: {readable(self.weights)} as {dtypes}"


def readable(size: int) -> str:
    """Return a number of bytes with a unit.

    >>> readable(41_800_000_000)
    '41.8 GB'
    """
    unit, step = next((u for u in UNITS if size >= u[1]), ("B", 1))
    return f"{size / step:.3g} {unit}"


def measure(folder: Path, config: ModelConfig, *, keep_dtype: bool) -> Footprint:
    """Return what loading a checkpoint takes in memory, after checking its headers.

    Raises:
        ValueError: as ``load.check_headers``.
    """
    sources, wanted = check_headers(folder, config)
    sizes, dtypes = [], set()
    for path, (leaf, parts) in wanted.items():
        found = [(part, sources[part.name]) for part in parts]
        scales = 0
        if keep_dtype and stays_int8(path, found, leaf):
            leaf, scales = jax.ShapeDtypeStruct(leaf.shape, np.int8), 4 * leaf.shape[0]
        elif keep_dtype:
            leaf = stored_leaf([source for _, source in found], leaf)
        sizes.append(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize + scales)
        dtypes.add(np.dtype(leaf.dtype).name)
    scheme = read_scheme(folder)
    stored = sum(source.size for source in sources.values())
    method = None if scheme is None else scheme.detail
    return Footprint(method, stored, sum(sizes), max(sizes), tuple(sorted(dtypes)))


def cache_bytes(config: ModelConfig, capacity: int) -> int:
    """Return the bytes of one row's key-value cache of ``capacity`` positions."""
    cache: PyTree = jax.eval_shape(lambda: build_target(config).init_cache(1, capacity))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))
