"""Rows of an embedding table.

XLA on a CPU converts a whole bfloat16 table to read one row of it: for 152,000 rows of 1,024
numbers that takes 0.3 GB and 100 ms.
"""

import functools

import jax
from jaxtyping import Array, Int, Shaped
from llvmlite import ir

from specjax.kernels.call import CountTasks, argument, dim, register, result
from specjax.kernels.ir import I1, I32, I64, POINTER, VOID, Value, Writer
from specjax.kernels.stored import SIZES


def take_rows(table: Shaped[Array, "V D"], index: Int[Array, "N"]) -> Shaped[Array, "N D"]:
    """Return rows of a table; an index out of range is clipped."""
    size = SIZES[str(table.dtype)]
    name = register(f"specjax_take_rows_{size}", functools.partial(write_take_rows, size))
    shape = jax.ShapeDtypeStruct((*index.shape, table.shape[1]), table.dtype)
    return jax.ffi.ffi_call(name, shape)(table, index.astype("int32"))


def write_take_rows(size: int, module: ir.Module) -> CountTasks:
    """Write the kernel's body for numbers of ``size`` bytes; there is one task."""
    to = Writer(module, "body", VOID, [POINTER, I64])
    frame, _ = to.function.args
    rows, columns = dim(to, frame, 0, 0), dim(to, frame, 0, 1)
    table, index, out = argument(to, frame, 0), argument(to, frame, 1), result(to, frame)
    with to.loop(0, dim(to, frame, 1, 0)) as n:
        wanted = to.at.sext(to.read(I32, to.place(index, n, 4)), I64)
        row = to.most(to.least(wanted, to.sub(rows, 1)), 0)
        source = to.place(table, to.mul(row, columns), size)
        num_bytes = to.mul(columns, size)
        goal = to.place(out, to.mul(n, columns), size)
        to.call("llvm.memcpy.p0.p0.i64", VOID, goal, source, num_bytes, I1(0))
    to.at.ret_void()

    def count_tasks(to: Writer, frame: Value) -> Value:
        return I64(1)

    return count_tasks
