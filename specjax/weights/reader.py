"""Read parameters from tensors: any region of them, a few megabytes at a time.

A device gets the region that it keeps, so the host never holds more than that, the regions of one
tensor, and the piece that is being read. A piece is read once for all devices of the process.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from specjax.weights.packed import Packed, StaticBias, open_bias, open_packed
from specjax.weights.quantization import Source
from specjax.weights.safetensors_file import STORED, Entry, read_rows

PIECE = 2 << 20  # values read at a time
ALIGNMENT = 64  # bytes; on a CPU, JAX adopts a numpy array so aligned instead of copying it

Region = tuple[slice, ...]
Ends = tuple[tuple[int, int], ...]  # of a region: start and stop of each axis


class Part(NamedTuple):
    """Where values of a parameter lie: ``[start:stop:step]`` of an axis of a stored tensor."""

    name: str  # of the tensor
    axis: int = 0
    start: int = 0
    stop: int | None = None
    step: int = 1
    transpose: bool = False  # the last two axes, after that

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the values, from the tensor's."""
        sizes = list(stored)
        along = slice(self.start, self.stop, self.step).indices(stored[self.axis])
        sizes[self.axis] = len(range(*along))
        return (*sizes[:-2], sizes[-1], sizes[-2]) if self.transpose else tuple(sizes)

    def locate(self, region: Region) -> Region:
        """Return where a region of the parameter's values lies in the stored tensor."""
        places = list(region)
        if self.transpose:
            places[-2:] = places[:-3:-1]
        one = places[self.axis]
        first = self.start + one.start * self.step
        last = self.start + (one.stop - 1) * self.step + 1
        places[self.axis] = slice(first, last, self.step)
        return tuple(places)


def read_tensor(
    parts: Sequence[tuple[Part, Source]], leaf: jax.ShapeDtypeStruct, where: Any
) -> jax.Array:
    """Return a parameter on its devices.

    Args:
        parts: what it is made of, one below the other along the first axis or, if each has an axis
            less than the parameter, stacked.
        leaf: its shape and dtype.
        where: a device, a sharding, or None for JAX's default device.

    Raises:
        ValueError: a value is NaN or infinite, or turns infinite in the dtype.
    """
    placed, end = [], 0  # the parts, with their first row and their number of rows
    for part, source in parts:
        shape = part.shape(source.shape)
        stacked = len(shape) < len(leaf.shape)
        height = 1 if stacked else shape[0]
        placed.append((end, height, stacked, part, source))
        end += height

    def read(regions: Iterable[Ends]) -> dict[Ends, np.ndarray]:
        found = {
            ends: aligned(tuple(stop - start for start, stop in ends), jnp.dtype(leaf.dtype))
            for ends in regions
        }
        for first, height, stacked, part, source in placed:
            goals = []
            for (top, *others), out in found.items():
                start, stop = max(top[0], first), min(top[1], first + height)
                if start >= stop:
                    continue
                goal = out[start - top[0] : stop - top[0]]
                own = () if stacked else (slice(start - first, stop - first),)
                wanted = part.locate((*own, *(slice(*ends) for ends in others)))
                goals.append((goal[0] if stacked else goal, wanted))
            rows = open_source(part.name, source, leaf.dtype)
            fill(goals, source, rows, transpose=part.transpose)
        return found

    def ends(index: Region | None) -> Ends:
        assert index is not None  # every device of the sharding keeps a part
        return tuple(one.indices(size)[:2] for one, size in zip(index, leaf.shape, strict=True))

    if not isinstance(where, Sharding) or len(where.device_set) == 1:
        (whole,) = read([ends((slice(None),) * len(leaf.shape))]).values()
        return jax.device_put(whole, where)
    kept = where.addressable_devices_indices_map(leaf.shape).values()
    own = read({ends(index) for index in kept})
    return jax.make_array_from_callback(leaf.shape, where, lambda index: own[ends(index)])


def open_source(name: str, source: Source, dtype: Any) -> Callable[[int, int], np.ndarray]:
    """Return a function of (start, stop) that reads rows of a tensor, converted to a dtype.

    Axes but the last are merged; a vector's rows are its numbers.
    """
    goal = np.dtype(dtype)
    if isinstance(source, Entry):
        read = _open_plain(name, source)
    else:
        read = open_bias(source) if isinstance(source, StaticBias) else open_packed(source)

    def rows(start: int, stop: int) -> np.ndarray:
        with np.errstate(over="ignore"):
            values = read(start, stop).astype(goal, copy=False)
        if goal == np.float16 and not np.isfinite(values).all():
            remedy = "use bfloat16 or float32"
            raise ValueError(f"{name} in {source.file} does not fit float16: {remedy}")
        return values

    return rows


def fill(
    goals: Iterable[tuple[np.ndarray, Region]],
    source: Source,
    rows: Callable[[int, int], np.ndarray],
    *,
    transpose: bool = False,
) -> None:
    """Write regions of a tensor to arrays, which may be their transposes.

    Regions that differ in columns only are read together.
    """
    sizes = source.shape
    turned = isinstance(source, Packed) and source.transposed
    if turned:
        sizes = (*sizes[:-2], sizes[-1], sizes[-2])
    if len(sizes) == 1:
        sizes = (*sizes, 1)
    groups: dict[Any, list[tuple[np.ndarray, Region]]] = {}
    for out, region in goals:
        if transpose:
            out = out.swapaxes(-1, -2)
        if turned:
            out, region = out.swapaxes(-1, -2), (*region[:-2], region[-1], region[-2])
        if len(region) == 1:
            out, region = out[:, None], (*region, slice(0, 1))
        key = tuple((one.start, one.stop, one.step) for one in region[:-1])
        groups.setdefault(key, []).append((out, region))
    for some in groups.values():
        *lead, down, _ = some[0][1]
        shape, step = some[0][0].shape, down.step or 1
        each = max(1, PIECE // (sizes[-1] * step))
        chosen = [range(*one.indices(size)) for one, size in zip(lead, sizes, strict=False)]
        for at, index in zip(np.ndindex(shape[:-2]), itertools.product(*chosen), strict=True):
            matrix = int(np.ravel_multi_index(index, sizes[:-2])) if index else 0
            for first in range(0, shape[-2], each):
                last = min(first + each, shape[-2])
                start = matrix * sizes[-2] + down.start + first * step
                values = rows(start, start + (last - first - 1) * step + 1)[::step]
                for out, region in some:
                    out[at][first:last] = values[:, region[-1]]


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an uninitialised array whose memory JAX can adopt."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def _open_plain(name: str, entry: Entry) -> Callable[[int, int], np.ndarray]:
    _, bits, exponent = STORED.get(entry.dtype, (None, None, 0))  # whole numbers are all finite
    lines = entry._replace(shape=(*entry.shape, 1)) if len(entry.shape) < 2 else entry

    def read(start: int, stop: int) -> np.ndarray:
        values = read_rows(lines, start, stop)
        if exponent and ((values.view(bits) & exponent) == exponent).any():
            raise ValueError(f"{name} in {entry.file} holds NaN or infinity")
        return values

    return read
