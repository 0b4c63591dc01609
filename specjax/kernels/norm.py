"""RMSNorm with the same bits for a row in a batch of any size.

XLA adds up the numbers of a row in an order that depends on the number of rows.
"""

import functools
from collections.abc import Callable

import jax
from jaxtyping import Array, Float
from llvmlite import ir

from specjax.kernels.call import CountTasks, argument, dim, register, result
from specjax.kernels.ir import F32, I64, LANES, POINTER, VECTOR, VOID, Value, Writer
from specjax.kernels.stored import SIZES, read, store

TASK = 1 << 15  # numbers per task, at least


def rms_norm(
    x: Float[Array, "N D"], weight: Float[Array, "D"], epsilon: Float[Array, ""]
) -> Float[Array, "N D"]:
    """Return RMSNorm of rows, computed in float32, in the dtype of ``x``."""
    kinds = str(x.dtype), str(weight.dtype)
    name = "_".join(("specjax_rms_norm", *kinds))
    name = register(name, functools.partial(write_rms_norm, *kinds))
    return jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(x.shape, x.dtype))(x, weight, epsilon)


def write_rms_norm(x: str, weight: str, module: ir.Module) -> CountTasks:
    """Write the kernel's body; a task is a range of rows."""

    def count_tasks(to: Writer, frame: Value) -> Value:
        rows, size = dim(to, frame, 0, 0), dim(to, frame, 0, 1)
        return to.most(to.least(to.div(to.mul(rows, size), TASK), rows), 1)

    to = Writer(module, "body", VOID, [POINTER, I64])
    frame, task = to.function.args
    rows, size = dim(to, frame, 0, 0), dim(to, frame, 0, 1)
    num_tasks, whole = count_tasks(to, frame), to.mul(to.div(size, LANES), LANES)
    epsilon = to.read(F32, argument(to, frame, 2))

    def each(step: Callable[[Value, Value | None], None]) -> None:
        """Write ``step(i, lane mask)`` for every vector of a row."""
        with to.loop(0, whole, LANES) as i:
            step(i, None)
        with to.at.if_then(to.less(whole, size)):
            step(whole, to.first_lanes(to.sub(size, whole), LANES))

    first = to.div(to.mul(rows, task), num_tasks)
    last = to.div(to.mul(rows, to.add(task, 1)), num_tasks)
    sums = to.variable(ir.Constant(VECTOR, None))
    with to.loop(first, last) as row:
        left = to.place(argument(to, frame, 0), to.mul(row, size), SIZES[x])
        out = to.place(result(to, frame), to.mul(row, size), SIZES[x])
        to.write(ir.Constant(VECTOR, None), sums)

        def square(i, mask, left=left):
            found = read(to, to.place(left, i, SIZES[x]), x, mask)
            to.write(to.fma(found, found, to.read(VECTOR, sums)), sums)

        each(square)
        total = to.halves(to.read(VECTOR, sums), to.at.fadd)
        count = to.splat(to.at.uitofp(size, F32))
        mean = to.at.fadd(to.at.fdiv(total, count), to.splat(epsilon))
        root = to.call("llvm.sqrt.v16f32", VECTOR, mean)

        def scale(i, mask, left=left, out=out, root=root):
            found = read(to, to.place(left, i, SIZES[x]), x, mask)
            by = read(to, to.place(argument(to, frame, 1), i, SIZES[weight]), weight, mask)
            store(to, to.at.fmul(to.at.fdiv(found, root), by), to.place(out, i, SIZES[x]), x, mask)

        each(scale)
    to.at.ret_void()
    return count_tasks
