"""Matrices that stay what a checkpoint stores: int8 numbers with a scale for each output.

A step then reads half the bytes of bfloat16; `specjax bench int8` measures what that gains here.
Where the processor multiplies tiles of bfloat16 (AMX), int8 has no kernel, and none is kept.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from specjax.core.types import Int8Matrix
from specjax.kernels.amx import has_amx
from specjax.weights.names import JOINED, Route
from specjax.weights.packed import Packed, integers
from specjax.weights.quantization import Source
from specjax.weights.reader import Part, read_tensor
from specjax.weights.safetensors_file import read_all

MULTIPLIED = {"o_proj", "down_proj", *JOINED, *sum(JOINED.values(), ())}  # by ``modules.Linear``


def stays_int8(
    path: Route, parts: Sequence[tuple[Part, Source]], leaf: jax.ShapeDtypeStruct
) -> bool:
    """Return whether a parameter stays int8 in memory.

    Args:
        path: of the parameter.
        parts: that it is made of.
        leaf: its shape, and the dtype to compute in.
    """
    known = len(leaf.shape) == 2 and path[-1] == "weight" and path[-2] in MULTIPLIED
    if not known or leaf.dtype != jnp.float32 or has_amx():
        return False
    return all(part.axis == 0 and not part.transpose and is_int8(one) for part, one in parts)


def is_int8(source: Source) -> bool:
    """Return whether a matrix is int8 numbers with a scale per output, and zero means zero."""
    return (
        isinstance(source, Packed)
        and source.decode is integers
        and source.payload.shape == source.shape
        and source.block == (1, source.shape[-1])
        and source.group_of_column is None
        and (source.zeros is None or not read_all(source.zeros).any())
    )


def read_int8(
    parts: Sequence[tuple[Part, Source]], leaf: jax.ShapeDtypeStruct, where: Any
) -> Int8Matrix:
    """Return a parameter that ``stays_int8``, on its device.

    Raises:
        ValueError: a scale is NaN or infinite.
    """
    numbers, scales = [], []
    for part, source in parts:
        assert isinstance(source, Packed)
        numbers.append((part, source.payload))
        scales.append((part, source.scales._replace(shape=(source.shape[0], 1))))
    matrix = jax.ShapeDtypeStruct(leaf.shape, jnp.int8)
    column = jax.ShapeDtypeStruct((leaf.shape[0], 1), jnp.float32)
    return Int8Matrix(read_tensor(numbers, matrix, where), read_tensor(scales, column, where)[:, 0])
