"""Read safetensors files: the header first, and the data some rows at a time.

A header is checked before any data is read. Data is read, not mapped: the pages of a memory map
would count as this process's memory until the kernel reclaims them.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit

# safetensors' dtype -> (numpy's, the integer dtype of the same bits, the bits of the exponent: if
# all are set the value is infinite or NaN).
STORED: dict[str, tuple[Any, Any, int]] = {
    "F32": (np.dtype(np.float32), np.uint32, 0x7F800000),
    "F16": (np.dtype(np.float16), np.uint16, 0x7C00),
    "BF16": (np.dtype(jnp.bfloat16), np.uint16, 0x7F80),
}
# The dtypes of quantized weights and what belongs to them, as numpy's; 8-bit floating point
# numbers are their bits.
PACKED: dict[str, Any] = {
    "F8_E4M3": np.dtype(np.uint8),
    "F8_E8M0": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
}
KNOWN = {name: facts[0] for name, facts in STORED.items()} | PACKED


class Entry(NamedTuple):
    """The place of one tensor in a file."""

    file: Path
    dtype: str  # safetensors' name
    shape: tuple[int, ...]
    start: int  # in bytes from the start of the file
    size: int  # in bytes


def read_header(file: Path) -> dict[str, Entry]:
    """Return the tensors of one file by name, after checking that all their bytes exist.

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
        entries = {name: _entry(file, 8 + length, fields) for name, fields in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} has a damaged safetensors header: {error}") from None
    end = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
        if entry.start != end:
            raise ValueError(f"{file} has a damaged safetensors header: {name} overlaps or gaps")
        end += entry.size
    if total != end:
        raise ValueError(f"{file} is truncated or overlong: {total} bytes, its header says {end}")
    return entries


def read_rows(entry: Entry, start: int, stop: int) -> np.ndarray:
    """Return rows start to stop of a tensor, whose axes but the last are merged, as stored.

    Raises:
        ValueError: the file has become shorter than its header says.
    """
    dtype, columns = KNOWN[entry.dtype], entry.shape[-1] if entry.shape else 1
    first = entry.start + start * columns * dtype.itemsize
    found = np.fromfile(entry.file, dtype, (stop - start) * columns, offset=first)
    if found.size != (stop - start) * columns:
        raise ValueError(f"{entry.file} was cut short while it was read")
    return found.reshape(stop - start, columns)


def read_all(entry: Entry) -> np.ndarray:
    """Return a whole tensor, as stored."""
    rows = math.prod(entry.shape[:-1])
    return read_rows(entry, 0, rows).reshape(entry.shape)


def _entry(file: Path, data: int, fields: dict[str, Any]) -> Entry:
    shape, (start, end) = tuple(fields["shape"]), fields["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, start, end)) or end < start:
        raise ValueError(f"shape {shape} at {start}..{end}")
    dtype = str(fields["dtype"])
    if dtype in KNOWN and math.prod(shape) * KNOWN[dtype].itemsize != end - start:
        raise ValueError(f"{dtype} {shape} does not take {end - start} bytes")
    return Entry(file, dtype, shape, data + start, end - start)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name} appears twice")
        found[name] = value
    return found
