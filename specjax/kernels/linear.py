"""Matrix product ``x @ weight.T`` with the same bits for a row in a batch of any size.

Row n, output o is one sum over i in a fixed order: partial sums, one per lane, that are added up
by halves at the end. A tile of several rows and outputs keeps these sums in registers, so that each
loaded number is used several times. Tiles whose rows are all zeros, as padding is, are skipped.
"""

import functools
import itertools

import jax
from jaxtyping import Array, Float, Int8
from llvmlite import ir

from specjax.kernels import amx
from specjax.kernels.call import CountTasks, argument, dim, num_threads, register, result
from specjax.kernels.ir import (
    I64,
    LANES,
    POINTER,
    REGISTERS,
    VECTOR,
    VOID,
    BFloat,
    Value,
    Writer,
    has_feature,
)
from specjax.kernels.stored import SIZES, load, narrow, widen

# outputs and rows of a tile: 24 sums are in registers of AVX-512, 12 in those of AVX2
WIDTHS, MOST_ROWS = (4, 1), 6 if REGISTERS == 32 else 3
BLOCK_ROWS = 96  # of x, which stay in the L2 cache
MOST_PARTS = 4  # per thread, into which a block of rows' outputs are divided
TILE_PARTS = 2  # with AMX, where every part packs the rows again; 4 take 10% longer at 64 rows
TASK = 1 << 16  # multiplications per task, at least


def linear(
    x: Float[Array, "*stack N I"], weight: Float[Array, "*stack O I"] | Int8[Array, "*stack O I"]
) -> Float[Array, "*stack N O"]:
    """Return ``x @ weight.T``, accumulated in float32, in the dtype of ``x``.

    Each matrix of a stack [S, N, I] is multiplied by its own of [S, O, I].
    """
    name = register_linear(str(weight.dtype), str(x.dtype), stacked=x.ndim == 3)
    shape = jax.ShapeDtypeStruct((*x.shape[:-1], weight.shape[-2]), x.dtype)
    return jax.ffi.ffi_call(name, shape)(x, weight)


def register_linear(weight: str, x: str, *, stacked: bool) -> str:
    """Compile the product of these dtypes, and return the name XLA calls it by."""
    kind = ("stack",) * stacked + ("amx",) * amx.multiplies_tiles(weight, x)
    name = "_".join(("specjax_linear", *kind, weight, x))
    return register(name, functools.partial(write_linear, weight, x, stacked))


def multiplies_pairs(weight: str, x: str) -> bool:
    """Return whether the product uses AVX512-BF16, which multiplies pairs of bfloat16."""
    return weight == x == "bfloat16" and has_feature("avx512bf16")


def block_rows(weight: str, x: str) -> int:
    """Return how many rows of x a task multiplies by its part of the matrix at a time."""
    return amx.MOST_ROWS[x] if amx.multiplies_tiles(weight, x) else BLOCK_ROWS


def write_tile(module: ir.Module, outputs: int, rows: int, weight: str, x: str) -> str:
    """Write ``tile(w, x, out, I, O)``, which multiplies rows of x with rows of w; return its name.

    ``outputs`` rows of w by ``rows`` of x; ``weight`` and ``x`` are their dtypes.
    """
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
        row = functools.cache(lambda n: read(left, n, i, x, mask))
        column = functools.cache(lambda o: read(w, o, i, weight, mask))
        # each number is loaded when it is first used; of rows and outputs, the fewer are the inner
        # loop and stay in registers
        tile = itertools.product(range(rows), range(outputs))
        for n, o in sorted(tile, key=lambda at: at[:: 1 if outputs <= rows else -1]):
            place = sums[n * outputs + o]
            to.write(multiply(column(o), row(n), to.read(VECTOR, place)), place)
        for o in range(outputs):  # the weights that the next tile reads
            ahead = to.place(w, to.add(to.mul(outputs + o, size), i), SIZES[weight])
            to.prefetch(ahead)

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
            place = to.place(out, to.mul(n, stride), SIZES[x])
            to.write(narrow(to, part, x), place, align=SIZES[x])
    to.at.ret_void()
    return name


def write_is_live(module: ir.Module, x: str) -> None:
    """Write ``is_live(numbers, count)``: 1 if any of them is not zero, else 0."""
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


def write_block(module: ir.Module, weight: str, x: str) -> None:
    """Write ``block(w, left, out, rows, I, O, first, last)``: outputs of up to ``block_rows`` rows.

    ``w`` is a whole matrix [O, I], ``left`` and ``out`` are the block's own.
    """
    write_is_live(module, x)
    if amx.multiplies_tiles(weight, x):
        return amx.write_block(module, x)
    for outputs in WIDTHS:
        for rows in range(1, MOST_ROWS + 1):
            write_tile(module, outputs, rows, weight, x)
    to = Writer(module, "block", VOID, [POINTER] * 3 + [I64] * 5)
    w, left, out, num_rows, size, outputs, first, last = to.function.args
    num_tiles = to.div(to.add(num_rows, MOST_ROWS - 1), MOST_ROWS)

    def rows_of(t: Value) -> tuple[Value, Value]:
        """Return a tile's first row, and how many it has."""
        n, end = (to.div(to.mul(num_rows, end), num_tiles) for end in (t, to.add(t, 1)))
        return n, to.sub(end, n)

    live = to.room(ir.ArrayType(I64, BLOCK_ROWS))  # of each tile: is there a number but 0 in it?
    with to.loop(0, num_tiles) as t:
        n, count = rows_of(t)
        read = to.place(left, to.mul(n, size), SIZES[x])
        found = to.call("is_live", I64, read, to.mul(count, size))
        to.write(found, to.place(live, t, 8))
        with to.at.if_then(to.less(found, 1)), to.loop(n, to.add(n, count)) as row:
            zeros = to.place(out, to.add(to.mul(row, outputs), first), SIZES[x])
            num_bytes = to.mul(to.sub(last, first), SIZES[x])
            to.clear(zeros, num_bytes)

    def tiles(width: int) -> None:
        """Write all rows' results, ``width`` outputs at a time; the last ones may be repeated."""
        with to.loop(first, last, width) as o:
            o = to.least(o, to.most(to.sub(last, width), 0)) if width > 1 else o

            def run(n: Value, num: int, o: Value = o) -> None:
                to.call(
                    f"tile_{width}_{num}", VOID,
                    to.place(w, to.mul(o, size), SIZES[weight]),
                    to.place(left, to.mul(n, size), SIZES[x]),
                    to.place(out, to.add(to.mul(n, outputs), o), SIZES[x]),
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


def divide(
    to: Writer,
    frame: Value,
    sizes: tuple[Value, Value],
    rows: int | Value,
    in_tiles: bool,
    blocks: int | Value = 1,
) -> tuple[Value, Value]:
    """Return how many outputs a task computes for a block's rows, and how many tasks that makes.

    ``sizes`` are those of the matrix [O, I].
    """
    outputs, size = sizes
    unit, each = (2 * amx.SIDE, TILE_PARTS) if in_tiles else (8, MOST_PARTS)
    most = to.mul(num_threads(to, frame), each)
    if in_tiles:
        most = to.most(to.div(most, blocks), 1)
    most = to.mul(most, unit)
    share = to.div(to.sub(to.add(outputs, most), 1), most)
    least = to.add(to.div(TASK, to.mul(unit, size, rows)), 1)
    share = to.mul(to.most(share, least), unit)
    return share, to.div(to.sub(to.add(outputs, share), 1), share)


def write_linear(weight: str, x: str, stacked: bool, module: ir.Module) -> CountTasks:
    """Write the kernel's body; a task is a matrix, a block of its rows and one of its outputs."""
    write_block(module, weight, x)
    in_tiles, most_rows = amx.multiplies_tiles(weight, x), block_rows(weight, x)

    def sizes(to: Writer, frame: Value):
        axis = int(stacked)
        rows, size = dim(to, frame, 0, axis), dim(to, frame, 0, axis + 1)
        outputs = dim(to, frame, 1, axis)
        blocks = to.div(to.add(rows, most_rows - 1), most_rows)
        some = to.least(rows, most_rows)
        share, parts = divide(to, frame, (outputs, size), some, in_tiles, blocks)
        return rows, size, outputs, blocks, share, parts

    to = Writer(module, "body", VOID, [POINTER, I64])
    frame, task = to.function.args
    rows, size, outputs, blocks, share, parts = sizes(to, frame)
    matrix, rest = to.div(task, to.mul(blocks, parts)), to.at.urem(task, to.mul(blocks, parts))
    left = to.place(argument(to, frame, 0), to.mul(matrix, rows, size), SIZES[x])
    w = to.place(argument(to, frame, 1), to.mul(matrix, outputs, size), SIZES[weight])
    out = to.place(result(to, frame), to.mul(matrix, rows, outputs), SIZES[x])
    block, part = to.div(rest, parts), to.at.urem(rest, parts)
    # as even as they can be, so that no block is nearly empty
    start = to.div(to.mul(rows, block), blocks)
    stop = to.div(to.mul(rows, to.add(block, 1)), blocks)
    first = to.mul(part, share)
    last = to.least(to.add(first, share), outputs)
    to.call(
        "block", VOID,
        w,
        to.place(left, to.mul(start, size), SIZES[x]),
        to.place(out, to.mul(start, outputs), SIZES[x]),
        to.sub(stop, start), size, outputs, first, last,
    )  # fmt: skip
    to.at.ret_void()

    def count_tasks(to: Writer, frame: Value) -> Value:
        *_, blocks, _, parts = sizes(to, frame)
        return to.mul(dim(to, frame, 0, 0) if stacked else 1, blocks, parts)

    return count_tasks
