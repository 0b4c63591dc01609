"""JAX's gather and scatter in PyTorch, as advanced indexing.

JAX's gather reads windows of static size at given starts; PyTorch's indexing reads elements. An
axis whose window is the whole axis has no index, so that an embedding is one index; other windows
are expanded to indices. Out of bounds JAX's modes apply (fill or drop, clip, promise in bounds).
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from npu_bridge.rules import Equation, Operand, aten, call, out, rule, shape_of, to_dtype

FILL_OR_DROP = jax.lax.GatherScatterMode.FILL_OR_DROP
PROMISED = jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS


class Places(NamedTuple):
    """The indices of windows, of shapes that broadcast to [batch ..., windowed ...]."""

    index: dict[int, Any]  # by axis, unless its window is the whole axis
    windowed: list[int]  # axes of which a part is read, and which are kept
    whole: list[int]  # axes that are read whole
    valid: Any  # which windows are in bounds, or None if all are
    shape: list[int]


def locate(
    indices: Operand,
    batch: Sequence[int],
    shape: Sequence[int],
    sizes: Sequence[int],
    starts: Sequence[int],
    dropped: Sequence[int],
    batching: Sequence[tuple[int, int]],
    mode: Any,
) -> Places:
    """Return the indices of windows of ``sizes`` in an operand of ``shape``.

    Args:
        indices: the windows' starts, along its last axis.
        batch: the sizes of the other axes of ``indices``.
        shape: of the operand.
        sizes: of a window.
        starts: the operand's axis of each entry of the last axis of ``indices``.
        dropped: axes that are not in the result.
        batching: pairs of an axis of the operand and one of ``indices``.
        mode: JAX's, for windows out of bounds.
    """
    pairs, lost = dict(batching), {*dropped, *(axis for axis, _ in batching)}
    axes = range(len(shape))
    windowed = [a for a in axes if a not in lost and sizes[a] != shape[a]]
    wide = [*batch, *(sizes[a] for a in windowed)]

    def along(position: int, size: int) -> torch.Tensor:
        view = [1] * len(wide)
        view[position] = size
        return torch.arange(size, dtype=torch.int32).reshape(view)

    index: dict[int, Any] = {axis: along(at, batch[at]) for axis, at in pairs.items()}
    checks: list[Any] = []
    for position, axis in enumerate(starts):
        most = shape[axis] - sizes[axis]
        if most == 0 and axis not in lost and mode != FILL_OR_DROP:
            continue  # the only start that fits is 0
        start = call(aten.select.int, indices, len(batch), position)
        start = call(torch.reshape, start, [*batch, *(1 for _ in windowed)])
        if mode == FILL_OR_DROP and not surely(start, most):
            checks += [call(torch.ge, start, 0), call(torch.le, start, most)]
        if mode != PROMISED and not surely(start, most):
            start = call(torch.clamp, start, 0, most)
        if axis in lost or axis in windowed:
            index[axis] = start
    for axis in dropped:
        index.setdefault(axis, torch.zeros([1] * len(wide), dtype=torch.int32))
    for i, axis in enumerate(windowed):
        offset = along(len(batch) + i, sizes[axis])
        index[axis] = call(torch.add, index[axis], offset) if axis in index else offset
    both = functools.partial(call, torch.bitwise_and)
    whole = [axis for axis in axes if axis not in index]
    return Places(index, windowed, whole, functools.reduce(both, checks) if checks else None, wide)


def surely(start: Operand, most: int) -> bool:
    """Return whether a start is a constant that is in bounds."""
    return isinstance(start, torch.Tensor) and bool(((start >= 0) & (start <= most)).all())


@rule("gather")
def gather(eqn: Equation, x: Operand, indices: Operand) -> Operand:
    """Return windows of x at given starts."""
    dims, shape, batch = eqn.params["dimension_numbers"], shape_of(eqn), shape_of(eqn, 1)[:-1]
    batching = list(zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True))
    at = locate(
        indices, batch, shape, eqn.params["slice_sizes"], dims.start_index_map,
        dims.collapsed_slice_dims, batching, eqn.params["mode"],
    )  # fmt: skip
    front = [*at.index, *at.whole]
    taken = permute(x, front)
    if at.index:
        taken = call(aten.index.Tensor, taken, list(at.index.values()))
    if at.valid is not None:
        valid = call(torch.reshape, at.valid, [*batch, *(1 for _ in [*at.windowed, *at.whole])])
        empty = torch.tensor(filler(eqn), dtype=to_dtype(out(eqn).dtype))
        taken = call(torch.where, valid, taken, empty)
    lost = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    kept = [axis for axis in range(len(shape)) if axis not in lost]
    source = {axis: len(batch) + i for i, axis in enumerate([*at.windowed, *at.whole])}
    offsets, rows = dict(zip(dims.offset_dims, kept, strict=True)), iter(range(len(batch)))
    rank = len(out(eqn).shape)
    return permute(taken, [source[offsets[i]] if i in offsets else next(rows) for i in range(rank)])


def filler(eqn: Equation) -> float | int | bool:
    """Return the value that JAX's gather has out of bounds."""
    dtype, given = np.dtype(out(eqn).dtype), eqn.params.get("fill_value")
    if given is not None:
        return given
    if dtype.kind == "b":
        return True
    if np.issubdtype(dtype, np.integer):
        bounds = np.iinfo(dtype)
        return int(bounds.min if bounds.min < 0 else bounds.max)
    return math.nan


def scatter(
    accumulate: bool, eqn: Equation, x: Operand, indices: Operand, updates: Operand
) -> Operand:
    """Return x with windows set, or added to."""
    dims, shape, batch = eqn.params["dimension_numbers"], shape_of(eqn), shape_of(eqn, 1)[:-1]
    batching = list(
        zip(dims.operand_batching_dims, dims.scatter_indices_batching_dims, strict=True)
    )
    lost = {*dims.inserted_window_dims, *dims.operand_batching_dims}
    kept = [axis for axis in range(len(shape)) if axis not in lost]
    source, given = dict(zip(kept, dims.update_window_dims, strict=True)), shape_of(eqn, 2)
    sizes = [given[source[axis]] if axis in source else 1 for axis in range(len(shape))]
    at = locate(
        indices, batch, shape, sizes, dims.scatter_dims_to_operand_dims,
        dims.inserted_window_dims, batching, eqn.params["mode"],
    )  # fmt: skip
    rows = [i for i in range(len(given)) if i not in dims.update_window_dims]
    updates = permute(updates, [*rows, *(source[axis] for axis in [*at.windowed, *at.whole])])
    front = [*at.index, *at.whole]
    moved, index = permute(x, front), list(at.index.values())
    if at.valid is not None:
        moved = drop(moved, index, at, updates, accumulate, shape)
    elif index:
        moved = call(aten.index_put.default, moved, index, updates, accumulate)
    else:
        moved = call(torch.add, moved, updates) if accumulate else updates
    return permute(moved, [front.index(axis) for axis in range(len(front))])


def drop(
    moved: Operand,
    index: Sequence[Operand],
    at: Places,
    updates: Operand,
    accumulate: bool,
    shape: Sequence[int],
) -> Operand:
    """Scatter windows that are in bounds; the others go to a row past the end, cut off again."""
    sizes, rest = [shape[axis] for axis in at.index], [shape[axis] for axis in at.whole]
    total, linear = math.prod(sizes), index[0]
    for size, one in zip(sizes[1:], index[1:], strict=True):
        linear = call(torch.add, call(torch.mul, linear, size), one)
    linear = call(torch.where, at.valid, linear, torch.tensor(total, dtype=torch.int32))
    rows = call(torch.reshape, moved, [total, *rest])
    rows = call(torch.nn.functional.pad, rows, [0, 0] * len(rest) + [0, 1])
    rows = call(aten.index_put.default, rows, [linear], updates, accumulate)
    return call(torch.reshape, call(aten.slice.Tensor, rows, 0, 0, total), [*sizes, *rest])


def permute(x: Operand, order: list[int]) -> Operand:
    """Return x with its axes in this order."""
    return x if order == sorted(order) else call(torch.permute, x, order)


rule("scatter")(functools.partial(scatter, False))
rule("scatter-add", "scatter_add")(functools.partial(scatter, True))
