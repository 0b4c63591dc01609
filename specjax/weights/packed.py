"""Values of quantized matrices: (number - zero point) * scale, each scale of one group of numbers.

All formats are this formula. They differ in how numbers lie in bytes (``Decode``), in which numbers
share a scale (``Packed.block``), and in whether a row of the file is one of the matrix or of its
transpose. Computed in float32, then rounded once, as their packers' own readers do.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax.weights.safetensors_file import Entry, read_all, read_rows

E4M3 = np.arange(256, dtype=np.uint8).view(jnp.float8_e4m3fn).astype(np.float32)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # and their negatives
E2M1 = np.concatenate([E2M1, -E2M1])
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the nibble of each of eight outputs

Decode = Callable[[np.ndarray], np.ndarray]  # rows of a file -> the numbers, float32


class Packed(NamedTuple):
    """The tensors of one quantized matrix, and how they are read.

    A row is one of ``shape``, whose axes but the last two are merged with the rows; if
    ``transposed``, one of the transposed matrix.
    """

    shape: tuple[int, ...]  # as the model has it, [..., out, in]
    dtype: str  # safetensors' name of the type that values are rounded to
    payload: Entry
    decode: Decode
    scales: Entry
    block: tuple[int, int]  # rows and columns that share a scale
    zeros: Entry | None = None
    decode_zeros: Decode = lambda stored: stored.astype(np.float32)
    group_of_row: Entry | None = None  # for each row, if they are not in order
    group_of_column: Entry | None = None
    rows_per_row: int = 1  # rows of the matrix in one of the payload
    transposed: bool = False

    @property
    def file(self) -> Path:
        """The file of the payload."""
        return self.payload.file

    @property
    def size(self) -> int:
        """The number of bytes of all its tensors."""
        more = (self.zeros, self.group_of_row, self.group_of_column)
        return sum(e.size for e in (self.payload, self.scales, *more) if e is not None)


def nibbles(bits: int, offset: int = 0, order: tuple[int, ...] | None = None) -> Decode:
    """Return a function that reads unsigned numbers of int32 words along a row, less an offset."""
    shifts = np.array(order or range(32 // bits), np.uint32) * bits

    def decode(stored: np.ndarray) -> np.ndarray:
        words = stored.view(np.uint32)[..., None]
        numbers = (words >> shifts) & np.uint32((1 << bits) - 1)
        return numbers.reshape(len(stored), -1).astype(np.float32) - np.float32(offset)

    return decode


def nibbles_down(bits: int, offset: int = 0) -> Decode:
    """Return a function that reads int32 words as unsigned numbers of several rows."""
    across = nibbles(bits, offset)

    def decode(stored: np.ndarray) -> np.ndarray:
        each = across(stored).reshape(*stored.shape, -1)
        return each.transpose(0, 2, 1).reshape(-1, stored.shape[1])

    return decode


def e4m3(stored: np.ndarray) -> np.ndarray:
    """Return 8-bit floating point numbers, which have no infinity."""
    return E4M3[stored]


def e2m1(stored: np.ndarray) -> np.ndarray:
    """Return 4-bit floating point numbers, two a byte, the lower half first."""
    return E2M1[np.stack([stored & 15, stored >> 4], axis=-1)].reshape(len(stored), -1)


def integers(stored: np.ndarray) -> np.ndarray:
    """Return integers as float32."""
    return stored.astype(np.float32)


def scale_values(entry: Entry) -> np.ndarray:
    """Return scales in float32, of any shape; powers of two may be stored as their exponents."""
    stored = read_all(entry)
    if entry.dtype in ("U8", "F8_E8M0"):
        powers = np.ldexp(np.float32(1), stored.astype(np.int32) - 127)
        return np.where(stored == 255, np.float32(np.nan), powers)
    return stored.astype(np.float32)


class StaticBias(NamedTuple):
    """The bias of a layer that msModelSlim quantized with static activations (W8A8).

    Its layer computes ``deq_scale * (x_q @ w.T + quant_bias)`` with ``x_q = x / input_scale +
    input_offset``; so without quantized activations its bias is the value here, and not a tensor
    ``bias``, which may be there too.
    """

    shape: tuple[int, ...]
    dtype: str
    quant_bias: Entry
    weight: Entry
    deq_scale: Entry
    input_offset: Entry

    @property
    def file(self) -> Path:
        """The file of the integer bias."""
        return self.quant_bias.file

    @property
    def size(self) -> int:
        """The number of bytes of the tensors that only the bias has."""
        return self.quant_bias.size + self.deq_scale.size + self.input_offset.size


def output_scales(bias: StaticBias) -> np.ndarray:
    """Return ``deq_scale`` in float32; for Ascend's operators its bits may be stored as int64."""
    scales = read_all(bias.deq_scale).reshape(-1)
    if scales.dtype == np.int64:
        return scales.astype(np.int32).view(np.float32)
    return scales.astype(np.float32)


def open_bias(bias: StaticBias) -> Callable[[int, int], np.ndarray]:
    """Return a function of (start, stop) that reads these numbers of the bias, in float32."""
    scales, offset = output_scales(bias), read_all(bias.input_offset).astype(np.float64).item()
    whole = read_all(bias.quant_bias).reshape(-1).astype(np.float64)

    def read(start: int, stop: int) -> np.ndarray:
        sums = read_rows(bias.weight, start, stop).sum(axis=1, dtype=np.int64)
        values = scales[start:stop] * (whole[start:stop] + offset * sums)
        if not np.isfinite(values).all():
            raise ValueError(f"{bias.file} holds NaN or infinity")
        return values.astype(np.float32)[:, None]

    return read


def open_packed(packed: Packed) -> Callable[[int, int], np.ndarray]:
    """Return a function of (start, stop) that reads these rows, in ``packed.dtype``.

    Scales and zero points are read here, as a whole; numbers when they are asked for.
    """
    *_, rows, columns = packed.shape
    if packed.transposed:
        rows, columns = columns, rows
    tall, wide = packed.block
    scales = _as_grid(scale_values(packed.scales))
    zeros = None
    if packed.zeros is not None:
        stored = read_all(packed.zeros)
        zeros = packed.decode_zeros(_as_grid(stored))[: len(scales), : scales.shape[1]]
    of_row = None if packed.group_of_row is None else read_all(packed.group_of_row)
    of_column = None if packed.group_of_column is None else read_all(packed.group_of_column)
    per, groups = packed.rows_per_row, -(-rows // tall)
    dtype = np.dtype(jnp.bfloat16 if packed.dtype == "BF16" else np.float16)

    def spread(grid: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Return a grid's number of each value: of rows ``at`` of the grid, and of all columns."""
        some = grid[at] if len(grid) > 1 else grid
        if of_column is not None:
            return some[:, of_column]
        return some if some.shape[1] == 1 or wide == 1 else np.repeat(some, wide, 1)[:, :columns]

    def read(start: int, stop: int) -> np.ndarray:
        first, last = start // per, -(-stop // per)
        values = packed.decode(read_rows(packed.payload, first, last))
        values = values[start - first * per : stop - first * per, :columns]
        matrix, row = np.divmod(np.arange(start, stop), rows)
        at = matrix * groups + row // tall if of_row is None else of_row[row]
        if zeros is not None:
            values -= spread(zeros, at)
        values *= spread(scales, at)
        if not np.isfinite(values).all():
            raise ValueError(f"{packed.file} holds NaN or infinity")
        with np.errstate(over="ignore"):
            return values.astype(dtype)

    return read


def _as_grid(stored: np.ndarray) -> np.ndarray:
    """Return scales or zero points as a matrix; a vector has one for each row."""
    return stored.reshape(-1, stored.shape[-1] if stored.ndim > 1 else 1)
