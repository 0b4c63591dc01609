"""Read safetensors files by their headers first, and their data in small pieces.

A header is checked whole before any data is touched. Data goes through one small buffer:
a memory map would count every touched page as ours until the kernel takes it back.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

CHUNK_BYTES = 8 << 20
MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit

# Stored type -> (numpy's, the same bits as integers, the exponent's bits: all set means
# infinity or NaN).
STORED: dict[str, tuple[Any, Any, int]] = {
    "F32": (np.dtype(np.float32), np.uint32, 0x7F800000),
    "F16": (np.dtype(np.float16), np.uint16, 0x7C00),
    "BF16": (np.dtype(jnp.bfloat16), np.uint16, 0x7F80),
}


class Entry(NamedTuple):
    """Where one tensor lies."""

    file: Path
    dtype: str  # safetensors' name
    shape: tuple[int, ...]
    start: int  # in bytes from the start of the file
    size: int  # in bytes


def read_header(file: Path) -> dict[str, Entry]:
    """Return the tensors of one file by name, having checked that all their bytes exist.

    Raises:
        ValueError: the file is not safetensors, is truncated, or contradicts itself.
    """
    total = file.stat().st_size
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if total < 8 or length > min(total - 8, MAX_HEADER_BYTES):
            hint = "truncated, or a git-lfs pointer whose data was never fetched?"
            raise ValueError(f"{file} is not a whole safetensors file ({total} bytes: {hint})")
        text = handle.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_no_repeats)
        header.pop("__metadata__", None)
        entries = {name: _entry(file, 8 + length, said) for name, said in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} has a damaged safetensors header: {error}") from None
    end = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
        if entry.start != end:
            raise ValueError(f"{file} has a damaged safetensors header: {name} overlaps or gaps")
        end += entry.size
    if total != end:
        raise ValueError(f"{file} is truncated or overlong: {total} bytes, its header says {end}")
    return entries


def read_chunks(entry: Entry, name: str, dtype: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first element, flat values in ``dtype``); each array is valid until the next.

    Raises:
        ValueError: a value is NaN or infinite, or turns infinite in ``dtype``.
    """
    stored, bits, exponent = STORED[entry.dtype]
    buffer = np.empty(min(CHUNK_BYTES, entry.size) // stored.itemsize, stored)
    goal, first, total = np.dtype(dtype), 0, entry.size // stored.itemsize
    with entry.file.open("rb", buffering=0) as handle:
        handle.seek(entry.start)
        while first < total:
            part = buffer[: total - first]
            _fill(handle, part.view(np.uint8).data, entry.file)
            if ((part.view(bits) & exponent) == exponent).any():
                raise ValueError(f"{name} in {entry.file} holds NaN or infinity")
            with np.errstate(over="ignore"):
                values = part.astype(goal, copy=False)
            if goal == np.float16 and not np.isfinite(values).all():
                remedy = "use bfloat16 or float32"
                raise ValueError(f"{name} in {entry.file} does not fit float16: {remedy}")
            yield first, values
            first += part.size


def _fill(handle: Any, view: memoryview, file: Path) -> None:
    while view:
        count = handle.readinto(view)
        if not count:
            raise ValueError(f"{file} was cut short while it was read")
        view = view[count:]


def _entry(file: Path, data: int, said: dict[str, Any]) -> Entry:
    shape, (start, end) = tuple(said["shape"]), said["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, start, end)) or end < start:
        raise ValueError(f"shape {shape} at {start}..{end}")
    dtype = str(said["dtype"])
    if dtype in STORED and math.prod(shape) * STORED[dtype][0].itemsize != end - start:
        raise ValueError(f"{dtype} {shape} does not take {end - start} bytes")
    return Entry(file, dtype, shape, data + start, end - start)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in set(names):
        if names.count(name) > 1:
            raise ValueError(f"{name} appears twice")
    return dict(pairs)
