"""Products of rows with the matrices of a stack, each row with its own: a mixture's experts.

Only the matrices that some row is multiplied by are read, each once for all of its rows. A row's
numbers are added up as ``linear`` does, so that its result is bitwise the same whatever the other
rows are, and in whatever company of rows their matrices are read.
"""

import functools

import jax
from jaxtyping import Array, Float, Int
from llvmlite import ir

from specjax.kernels import amx
from specjax.kernels.call import CountTasks, argument, dim, register, result
from specjax.kernels.ir import I32, I64, POINTER, VOID, Value, Writer
from specjax.kernels.linear import block_rows, divide, write_block
from specjax.kernels.stored import SIZES


def grouped_linear(
    x: Float[Array, "P I"], weights: Float[Array, "S O I"], counts: Int[Array, "S"]
) -> Float[Array, "P O"]:
    """Return each row's product with its matrix, in the dtype of ``x``.

    Rows are sorted by their matrix: the first ``counts[0]`` are multiplied by matrix 0, the next
    ``counts[1]`` by matrix 1 and so on; together that is all of them.
    """
    kinds = str(weights.dtype), str(x.dtype)
    with_amx = ("amx",) * amx.multiplies_tiles(*kinds)
    name = "_".join(("specjax_grouped_linear", *with_amx, *kinds))
    name = register(name, functools.partial(write_grouped, *kinds))
    shape = jax.ShapeDtypeStruct((x.shape[0], weights.shape[1]), x.dtype)
    return jax.ffi.ffi_call(name, shape)(x, weights, counts.astype("int32"))


def write_grouped(weight: str, x: str, module: ir.Module) -> CountTasks:
    """Write the kernel's body; a task is a matrix, and a part of its outputs."""
    write_block(module, weight, x)
    in_tiles, most_rows = amx.multiplies_tiles(weight, x), block_rows(weight, x)

    def sizes(to: Writer, frame: Value):
        stack, outputs, size = (dim(to, frame, 1, axis) for axis in range(3))
        share, parts = divide(to, frame, (outputs, size), 1, in_tiles)
        return stack, outputs, size, share, parts

    to = Writer(module, "body", VOID, [POINTER, I64])
    frame, task = to.function.args
    _, outputs, size, share, parts = sizes(to, frame)
    matrix, part = to.div(task, parts), to.at.urem(task, parts)
    counts, before = argument(to, frame, 2), to.variable(I64(0))

    def count(at: Value) -> Value:
        return to.at.sext(to.read(I32, to.place(counts, at, 4)), I64)

    with to.loop(0, matrix) as other:
        to.write(to.add(to.read(I64, before), count(other)), before)
    start = to.read(I64, before)
    stop = to.least(to.add(start, count(matrix)), dim(to, frame, 0, 0))
    first = to.mul(part, share)
    last = to.least(to.add(first, share), outputs)
    with to.loop(start, stop, most_rows) as row:
        to.call(
            "block", VOID,
            to.place(argument(to, frame, 1), to.mul(matrix, outputs, size), SIZES[weight]),
            to.place(argument(to, frame, 0), to.mul(row, size), SIZES[x]),
            to.place(result(to, frame), to.mul(row, outputs), SIZES[x]),
            to.least(to.sub(stop, row), most_rows), size, outputs, first, last,
        )  # fmt: skip
    to.at.ret_void()

    def count_tasks(to: Writer, frame: Value) -> Value:
        stack, *_, parts = sizes(to, frame)
        return to.mul(stack, parts)

    return count_tasks
