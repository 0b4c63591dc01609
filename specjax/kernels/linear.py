"""The product with a stored matrix: ``x @ weight.T``, for any number of rows.

Row n, output o is one sum over i in an order that depends on nothing else: 16 partial sums, one per
lane, that are added up by halves at the end. A tile of several rows and outputs holds these sums in
registers, so that each number that was loaded is used several times. Rows that are nothing but
zeros, as padding is, cost nothing where a whole tile is.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from llvmlite import ir

from specjax.kernels.call import argument, dim, has_feature, register, result
from specjax.kernels.ir import (
    F16,
    F32,
    I1,
    I8,
    I16,
    I32,
    I64,
    LANES,
    POINTER,
    VECTOR,
    VOID,
    BFloat,
    Value,
    Writer,
)

SIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "uint16": 2}  # uint16: bfloat16's bits
STORED = {"float32": F32, "bfloat16": I16, "float16": F16, "uint16": I16}
WIDTHS, MOST_ROWS = (4, 1), 6  # outputs of a tile, rows of x: 24 sums are held in registers
BLOCK_ROWS = 96  # of x, which stay in the second-level cache
MOST_PARTS = 8  # of a block of rows' outputs
TASK = 1 << 16  # multiplications that are worth a task of their own


def linear(x: Float[Array, "N I"], weight: Float[Array, "O I"]) -> Float[Array, "N O"]:
    """Multiply on the CPU: float32, whatever the types."""
    name = register_linear(str(weight.dtype), str(x.dtype))
    shape = jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), jnp.float32)
    return jax.ffi.ffi_call(name, shape)(x, weight)


def register_linear(weight: str, x: str) -> str:
    """Compile the product of these types."""
    return register(f"specjax_linear_{weight}_{x}", functools.partial(write_linear, weight, x))


def load(to: Writer, place: Value, dtype: str, lanes: int, mask: Value | None) -> Value:
    """Read numbers as they are stored; with a mask, zeros where it is false."""
    kind = ir.VectorType(STORED[dtype], lanes)
    if mask is None:
        return to.read(kind, place, align=1)
    name = f"llvm.masked.load.v{lanes}{kind.element.intrinsic_name}.p0"
    return to.call(name, kind, place, I32(1), mask, ir.Constant(kind, None))


def widen(to: Writer, stored: Value, dtype: str) -> Value:
    """Turn 16 numbers as they are stored into float32: none is rounded."""
    if dtype == "float16":
        return to.at.fpext(stored, VECTOR)
    if dtype in ("bfloat16", "uint16"):  # the upper half of a float32
        wide = ir.VectorType(I32, LANES)
        bits = to.at.shl(to.at.zext(stored, wide), ir.Constant(wide, [16] * LANES))
        return to.at.bitcast(bits, VECTOR)
    return stored


def multiplies_pairs(weight: str, x: str) -> bool:
    """Say whether this machine adds up products of two pairs of bfloat16 at a time."""
    return weight == x == "bfloat16" and has_feature("avx512bf16")


def write_tile(module: ir.Module, outputs: int, rows: int, weight: str, x: str) -> str:
    """Write ``tile(w, x, out, I, O)``: some rows of x times some rows of w."""
    name = f"tile_{outputs}_{rows}"
    to = Writer(module, name, VOID, [POINTER, POINTER, POINTER, I64, I64])
    w, left, out, size, stride = to.function.args
    sums = [to.variable(ir.Constant(VECTOR, None)) for _ in range(outputs * rows)]
    pairs = multiplies_pairs(weight, x)
    lanes = 2 * LANES if pairs else LANES

    def read(base: Value, row: int, i: Value, dtype: str, mask: Value | None) -> Value:
        place = to.place(base, to.add(to.mul(row, size), i), SIZES[dtype])
        stored = load(to, place, dtype, lanes, mask)
        if pairs:
            return to.at.bitcast(stored, BFloat(lanes))
        return widen(to, stored, dtype)

    def multiply(a: Value, b: Value, sum: Value) -> Value:
        if pairs:
            return to.call("llvm.x86.avx512bf16.dpbf16ps.512", VECTOR, sum, a, b)
        return to.fma(a, b, sum)

    def step(i: Value, mask: Value | None) -> None:
        stored = [read(w, o, i, weight, mask) for o in range(outputs)]
        for o in range(outputs):  # what the next tile reads: without, half as fast
            ahead = to.place(w, to.add(to.mul(outputs + o, size), i), SIZES[weight])
            to.call("llvm.prefetch.p0", VOID, ahead, I32(0), I32(3), I32(1))
        for n in range(rows):
            row = read(left, n, i, x, mask)
            for o in range(outputs):
                place = sums[n * outputs + o]
                to.write(multiply(stored[o], row, to.read(VECTOR, place)), place)

    whole = to.mul(to.div(size, lanes), lanes)
    with to.loop(0, whole, lanes) as i:
        step(i, None)
    with to.at.if_then(to.less(whole, size)):
        step(whole, to.first_lanes(to.sub(size, whole), lanes))
    each = LANES // outputs  # rows per vector of results
    for first in range(0, rows, each):
        some = range(first, min(first + each, rows))
        of = [sums[n * outputs + o] for n in some for o in range(outputs)]
        found = to.sums([to.read(VECTOR, place) for place in of])
        for k, n in enumerate(some):
            part = to.shuffle(found, found, range(k * outputs, (k + 1) * outputs))
            to.write(part, to.place(out, to.mul(n, stride), 4), align=4)
    to.at.ret_void()
    return name


def write_is_live(module: ir.Module, x: str) -> None:
    """Write ``is_live(numbers, count)``: 1 if any of them has a bit, else 0."""
    to = Writer(module, "is_live", I64, [POINTER, I64])
    numbers, count = to.function.args
    at, found = to.variable(I64(0)), to.variable(I64(0))
    bits = ir.IntType(8 * SIZES[x] * LANES)
    with to.while_() as unless:
        i = to.read(I64, at)
        more = to.at.icmp_signed("==", to.read(I64, found), I64(0))
        unless(to.at.and_(to.less(i, count), more))
        mask = to.first_lanes(to.sub(count, i), LANES)
        some = load(to, to.place(numbers, i, SIZES[x]), x, LANES, mask)
        some = to.at.icmp_unsigned("!=", to.at.bitcast(some, bits), ir.Constant(bits, 0))
        to.write(to.at.zext(some, I64), found)
        to.write(to.add(i, LANES), at)
    to.at.ret(to.read(I64, found))


def write_linear(weight: str, x: str, module: ir.Module):
    """Write the product's body; tasks are blocks of outputs times blocks of rows."""
    for outputs in WIDTHS:
        for rows in range(1, MOST_ROWS + 1):
            write_tile(module, outputs, rows, weight, x)
    write_is_live(module, x)

    def sizes(to: Writer, frame: Value):
        rows, size, outputs = dim(to, frame, 0, 0), dim(to, frame, 0, 1), dim(to, frame, 1, 0)
        blocks = to.div(to.add(rows, BLOCK_ROWS - 1), BLOCK_ROWS)
        # outputs of a task: a multiple of 8
        share = to.div(to.add(outputs, 8 * MOST_PARTS - 1), 8 * MOST_PARTS)
        least = to.add(to.div(TASK, to.mul(8, size, to.least(rows, BLOCK_ROWS))), 1)
        share = to.mul(to.most(share, least), 8)
        parts = to.div(to.sub(to.add(outputs, share), 1), share)
        return rows, size, outputs, blocks, share, parts

    to = Writer(module, "body", VOID, [POINTER, I64])
    frame, task = to.function.args
    rows, size, outputs, blocks, share, parts = sizes(to, frame)
    left, w, out = argument(to, frame, 0), argument(to, frame, 1), result(to, frame)
    block, part = to.div(task, parts), to.at.urem(task, parts)
    # as even as they can be, so that no block is nearly empty
    start = to.div(to.mul(rows, block), blocks)
    stop = to.div(to.mul(rows, to.add(block, 1)), blocks)
    first = to.mul(part, share)
    last = to.least(to.add(first, share), outputs)

    num_rows = to.sub(stop, start)
    num_tiles = to.div(to.add(num_rows, MOST_ROWS - 1), MOST_ROWS)

    def rows_of(t: Value) -> tuple[Value, Value]:
        """Return a tile's first row, and how many it has."""
        ends = (to.div(to.mul(num_rows, end), num_tiles) for end in (t, to.add(t, 1)))
        n, end = (to.add(start, end) for end in ends)
        return n, to.sub(end, n)

    live = to.room(ir.ArrayType(I64, BLOCK_ROWS))  # of each tile: is there a number in it?
    with to.loop(0, num_tiles) as t:
        n, count = rows_of(t)
        read = to.place(left, to.mul(n, size), SIZES[x])
        found = to.call("is_live", I64, read, to.mul(count, size))
        to.write(found, to.place(live, t, 8))
        with to.at.if_then(to.less(found, 1)), to.loop(n, to.add(n, count)) as row:
            zeros = to.place(out, to.add(to.mul(row, outputs), first), 4)
            num_bytes = to.mul(to.sub(last, first), 4)
            to.call("llvm.memset.p0.i64", VOID, zeros, I8(0), num_bytes, I1(0))

    def tiles(width: int) -> None:
        """Write all rows' results, ``width`` outputs at a time; the last may be repeated."""
        with to.loop(first, last, width) as o:
            o = to.least(o, to.most(to.sub(last, width), 0)) if width > 1 else o

            def run(n: Value, num: int, o: Value = o) -> None:
                to.call(
                    f"tile_{width}_{num}", VOID,
                    to.place(w, to.mul(o, size), SIZES[weight]),
                    to.place(left, to.mul(n, size), SIZES[x]),
                    to.place(out, to.add(to.mul(n, outputs), o), 4),
                    size, outputs,
                )  # fmt: skip

            with to.loop(0, num_tiles) as t:
                n, count = rows_of(t)
                after = to.at.append_basic_block("next")
                count = to.mul(count, to.read(I64, to.place(live, t, 8)))
                chosen = to.at.switch(count, after)
                for num in range(1, MOST_ROWS + 1):
                    block = to.at.append_basic_block("rows")
                    chosen.add_case(I64(num), block)
                    to.at.position_at_end(block)
                    run(n, num)
                    to.at.branch(after)
                to.at.position_at_end(after)

    with to.at.if_else(to.less(to.sub(last, first), 4)) as (narrow, wide):
        with narrow:
            tiles(1)
        with wide:
            tiles(4)
    to.at.ret_void()

    def count_tasks(to: Writer, frame: Value) -> Value:
        *_, blocks, _, parts = sizes(to, frame)
        return to.mul(blocks, parts)

    return count_tasks
