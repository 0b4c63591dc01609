"""Products by AMX, the tiles of Intel's servers since 2023, which multiply bfloat16.

A tile of 16 outputs x 32 inputs of the matrix is read as it is stored; 16 rows of x are packed as
columns beside each other. A float32 row is three columns, of bfloat16 numbers whose sum it is
exactly, added at the end: with weights of bfloat16 such a product is as exact as one in float32.
AMX counts numbers below 2**-126 as zeros.
"""

import ctypes
import functools
import platform

from llvmlite import ir

from specjax.kernels.ir import (
    I1,
    I8,
    I16,
    I32,
    I64,
    POINTER,
    VECTOR,
    VOID,
    Value,
    Writer,
    has_feature,
)
from specjax.kernels.stored import SIZES, load, read, store

SIDE = 16  # outputs, and columns, of a tile
STEP = 32  # inputs of a tile: pairs of numbers
TILE = 1024  # bytes
FEW = 4  # columns: one row's, or a few rows' in bfloat16
PARTS = {"float32": 3, "bfloat16": 1}  # columns of a row, by its dtype
# rows that are packed at a time: as columns they stay in the L2 cache, while weights pass by
MOST_ROWS = {x: 288 // parts for x, parts in PARTS.items()}
MATRIX, COLUMNS = (4, 5), (6, 7)  # registers: sums 0 to 3, then those read
PAIRS = ir.VectorType(I32, SIDE)  # of bfloat16 numbers
ASK_PERMISSION, TILE_DATA = (158, 0x1023), 18  # arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)


@functools.cache
def has_amx() -> bool:
    """Return whether this machine multiplies bfloat16 tiles, and Linux lets this process do so."""
    if platform.system() != "Linux" or not (has_feature("amx-bf16") and has_feature("avx512f")):
        return False
    return ctypes.CDLL(None).syscall(*ASK_PERMISSION, TILE_DATA) == 0


def multiplies_tiles(weight: str, x: str) -> bool:
    """Return whether the product of these dtypes uses AMX."""
    return weight == "bfloat16" and x in PARTS and has_amx()


def write_block(module: ir.Module, x: str) -> None:
    """Write ``block(w, left, out, rows, I, O, first, last)``: outputs of up to ``MOST_ROWS`` rows.

    ``w`` is a whole matrix [O, I], ``left`` and ``out`` are the block's own; the module has
    ``is_live``. Rows of zeros are not multiplied.
    """
    write_configure(module)
    for given, wanted in ((SIDE, SIDE), (FEW, SIDE), (SIDE, FEW)):
        write_transpose(module, given, wanted)
    write_pack(module, x)
    for matrices in (1, 2):
        for columns in (1, 2):
            write_tiles(module, matrices, columns)
    to = Writer(module, "block", VOID, [POINTER] * 3 + [I64] * 5)
    w, left, out, num_rows, size, outputs, first, last = to.function.args
    rows = to.room(ir.ArrayType(I64, MOST_ROWS[x]))  # those with a number but 0
    count = to.variable(I64(0))
    with to.loop(0, num_rows) as row:
        line = to.place(left, to.mul(row, size), SIZES[x])
        with to.at.if_else(to.less(to.call("is_live", I64, line, size), 1)) as (dead, live):
            with dead:
                zeros = to.place(out, to.add(to.mul(row, outputs), first), SIZES[x])
                num_bytes = to.mul(to.sub(last, first), SIZES[x])
                to.clear(zeros, num_bytes)
            with live:
                number = to.read(I64, count)
                to.write(row, to.place(rows, number, 8))
                to.write(to.add(number, 1), count)
    count = to.read(I64, count)
    with to.at.if_then(to.less(count, 1)):
        to.at.ret_void()

    steps = to.div(to.add(size, STEP - 1), STEP)
    groups = to.div(to.add(count, SIDE - 1), SIDE)
    num_tiles = to.div(to.add(to.mul(count, PARTS[x]), SIDE - 1), SIDE)
    packed_bytes = to.mul(groups, PARTS[x], steps, TILE)
    sums_bytes = to.mul(groups, PARTS[x], 2 * TILE)  # [columns, 32 outputs]
    packed = to.call("aligned_alloc", POINTER, I64(64), to.add(packed_bytes, sums_bytes))
    sums = to.place(packed, packed_bytes, 1)
    to.call("pack", VOID, left, rows, count, size, packed)

    def run(o: Value, matrices: int, width: Value) -> None:
        """Compute ``width`` outputs from ``o`` on, of all columns."""
        here = to.place(w, to.mul(o, size), 2)
        with to.loop(0, num_tiles, 2) as t:
            column = to.place(packed, to.mul(t, steps), TILE)
            goal = to.place(sums, t, 2 * TILE)
            is_first = to.at.zext(to.at.icmp_signed("==", t, I64(0)), I64)
            rest = here, column, goal, size, width, to.mul(count, PARTS[x]), is_first
            with to.at.if_else(to.less(to.add(t, 1), num_tiles)) as (two, one):
                with two:
                    to.call(f"tiles_{matrices}_2", VOID, *rest)
                with one:
                    to.call(f"tiles_{matrices}_1", VOID, *rest)
        with to.loop(0, count) as number:
            row = to.read(I64, to.place(rows, number, 8))
            for half in range(matrices):
                base = to.add(to.mul(number, PARTS[x] * 2 * SIDE), half * SIDE)
                parts = [
                    to.read(VECTOR, to.place(sums, to.add(base, part * 2 * SIDE), 4), align=64)
                    for part in range(PARTS[x])
                ]
                total = functools.reduce(to.at.fadd, parts)
                goal = to.place(out, to.add(to.mul(row, outputs), o, half * SIDE), SIZES[x])
                mask = None if matrices == 2 else to.first_lanes(width, SIDE)
                store(to, total, goal, x, mask)

    to.call("configure", VOID, I64(SIDE))
    whole = to.add(first, to.mul(to.div(to.sub(last, first), 2 * SIDE), 2 * SIDE))
    with to.loop(first, whole, 2 * SIDE) as o:
        run(o, 2, I64(2 * SIDE))
    with to.loop(whole, last, SIDE) as o:
        width = to.least(to.sub(last, o), SIDE)
        to.call("configure", VOID, width)
        run(o, 1, width)
    to.call("llvm.x86.tilerelease", VOID)
    to.call("free", VOID, packed)
    to.at.ret_void()


def write_configure(module: ir.Module) -> None:
    """Write ``configure(outputs)``: the sizes of all tiles; the matrix' have ``outputs`` rows."""
    to = Writer(module, "configure", VOID, [I64])
    (outputs,) = to.function.args
    kind = ir.ArrayType(I8, 64)
    config = to.room(kind)
    to.write(ir.Constant(kind, None), config)
    to.write(I8(1), config)  # the palette; then bytes of a row from byte 16 on, rows from 48 on
    for tile in range(8):
        rows = I8(SIDE) if tile in COLUMNS else to.at.trunc(outputs, I8)
        to.write(I16(4 * SIDE), to.place(config, 16 + 2 * tile, 1), align=1)
        to.write(rows, to.place(config, 48 + tile, 1), align=1)
    to.call("llvm.x86.ldtilecfg", VOID, config)
    to.at.ret_void()


def write_transpose(module: ir.Module, given: int, wanted: int) -> None:
    """Write ``transpose_given_wanted(source, target, stride)``: 16 x 16 numbers of 4 bytes.

    The source is contiguous, rows of the target are ``stride`` bytes apart. Only ``given`` rows of
    the source are read, the others are zeros; only ``wanted`` ones of the target are written.
    """
    to = Writer(module, f"transpose_{given}_{wanted}", VOID, [POINTER, POINTER, I64])
    source, target, stride = to.function.args
    rows = [to.read(PAIRS, to.place(source, i, 64), align=64) for i in range(given)]
    rows += [ir.Constant(PAIRS, None)] * (SIDE - given)
    rows = to.transpose(rows, ascending=given < SIDE)  # what is not needed falls off
    for i, row in enumerate(rows[:wanted]):
        to.write(row, to.place(target, to.mul(stride, i), 1), align=64)
    to.at.ret_void()


def transpose(to: Writer, num_columns: Value, few: str, source: Value, target: Value, stride: int):
    """Transpose by the function named ``few`` where there are few columns."""
    with to.at.if_else(to.less(FEW, num_columns)) as (many, rest):
        with many:
            to.call(f"transpose_{SIDE}_{SIDE}", VOID, source, target, I64(stride))
        with rest:
            to.call(few, VOID, source, target, I64(stride))


def write_pack(module: ir.Module, x: str) -> None:
    """Write ``pack(left, rows, count, I, packed)``: the rows as columns, [tiles, steps, 16, 16].

    A tile's columns are first written one below the other, and then it is turned in its place.
    """
    parts = PARTS[x]
    to = Writer(module, "pack", VOID, [POINTER, POINTER, I64, I64, POINTER])
    left, rows, count, size, packed = to.function.args
    whole, steps = to.div(size, STEP), to.div(to.add(size, STEP - 1), STEP)
    num_columns = to.mul(count, parts)
    num_tiles = to.div(to.add(num_columns, SIDE - 1), SIDE)

    def place_of(column: Value) -> Value:
        tile, place = to.div(column, SIDE), to.at.urem(column, I64(SIDE))
        return to.place(packed, to.add(to.mul(tile, steps, TILE), to.mul(place, 64)), 1)

    with to.loop(0, count) as number:
        base = to.place(left, to.mul(to.read(I64, to.place(rows, number, 8)), size), SIZES[x])
        columns = [place_of(to.add(to.mul(number, parts), part)) for part in range(parts)]

        def write(step: Value, length: Value | None) -> None:
            here = to.place(base, to.mul(step, STEP), SIZES[x])
            for column, pairs in zip(columns, split(to, here, x, length), strict=True):
                to.write(pairs, to.place(column, step, TILE), align=64)

        with to.loop(0, whole) as step:
            write(step, None)
        with to.at.if_then(to.less(whole, steps)):
            write(whole, to.sub(size, to.mul(whole, STEP)))
    last = to.mul(num_tiles, SIDE)
    last = to.at.select(to.less(FEW, num_columns), last, I64(FEW))
    with to.loop(num_columns, last) as column:
        place = place_of(column)
        with to.loop(0, steps) as step:
            to.write(ir.Constant(PAIRS, None), to.place(place, step, TILE), align=64)
    with to.loop(0, to.mul(num_tiles, steps)) as number:
        tile = to.place(packed, number, TILE)
        transpose(to, num_columns, f"transpose_{FEW}_{SIDE}", tile, tile, 64)
    to.at.ret_void()


def split(to: Writer, base: Value, x: str, length: Value | None) -> list[Value]:
    """Return 32 numbers as bfloat16 parts, each cut off after 8 digits; zeros after ``length``."""
    if x == "bfloat16":
        mask = None if length is None else to.first_lanes(length, STEP)
        return [to.at.bitcast(load(to, base, x, STEP, mask), PAIRS)]
    halves: list[list[Value]] = [[] for _ in range(PARTS[x])]
    upper, half_bits = (ir.Constant(PAIRS, [n] * SIDE) for n in (0xFFFF0000, 16))
    for half in (0, SIDE):
        mask = None if length is None else to.first_lanes(to.most(to.sub(length, half), 0), SIDE)
        value = read(to, to.place(base, half, 4), x, mask)
        for found in halves:
            kept = to.at.and_(to.at.bitcast(value, PAIRS), upper)
            found.append(to.at.trunc(to.at.lshr(kept, half_bits), ir.VectorType(I16, SIDE)))
            kept = to.at.bitcast(kept, VECTOR)
            is_all = to.at.fcmp_ordered("==", value, kept)  # infinity too, which is not subtracted
            value = to.at.select(is_all, ir.Constant(VECTOR, None), to.at.fsub(value, kept))
    return [to.at.bitcast(to.shuffle(a, b, range(STEP)), PAIRS) for a, b in halves]


def write_tiles(module: ir.Module, matrices: int, columns: int) -> None:
    """Write ``tiles``: the products of up to 2 tiles of outputs with up to 2 of columns.

    Its arguments are ``(w, packed, sums, I, width, num_columns, prefetch)``: ``width`` rows of w
    may be read, sums are [columns, 32 outputs]. If ``prefetch`` is 1, the weights of the next
    outputs are prefetched, in the order of memory: 24 matrices of 3072 x 1024 from memory take
    5.2 ms for one column, and in the order in which they are read, 6 to 10.
    """
    to = Writer(module, f"tiles_{matrices}_{columns}", VOID, [POINTER] * 3 + [I64] * 4)
    w, packed, sums, size, width, num_columns, prefetch = to.function.args
    steps = to.div(to.add(size, STEP - 1), STEP)
    whole = to.div(size, STEP)
    stride = to.mul(size, 2)
    found = [(m, c, I8(m * columns + c)) for m in range(matrices) for c in range(columns)]
    for *_, tile in found:
        to.call("llvm.x86.tilezero", VOID, tile)

    def step(number: Value, matrix: Value, stride: Value) -> None:
        for c in range(columns):
            place = to.place(packed, to.add(to.mul(steps, c), number), TILE)
            to.call("llvm.x86.tileloadd64", VOID, I8(COLUMNS[c]), place, I64(64))
        for m in range(matrices):
            place = to.place(matrix, to.mul(stride, m * SIDE), 1)
            to.call("llvm.x86.tileloadd64", VOID, I8(MATRIX[m]), place, stride)
            for c in range(columns):
                tile = I8(m * columns + c)
                to.call("llvm.x86.tdpbf16ps", VOID, tile, I8(MATRIX[m]), I8(COLUMNS[c]))

    with to.loop(0, whole) as number:
        step(number, to.place(w, number, 2 * STEP), stride)
        with to.at.if_then(to.at.trunc(prefetch, I1)):
            for line in range(matrices * SIDE):
                offset = to.add(to.mul(stride, matrices * SIDE), line * 64)
                ahead = to.place(w, to.add(to.mul(number, matrices * TILE), offset), 1)
                to.prefetch(ahead)
    with to.at.if_then(to.less(whole, steps)):  # the last inputs, with zeros behind them
        padded = to.room(ir.ArrayType(PAIRS, matrices * SIDE))
        i = to.mul(whole, STEP)
        mask = to.first_lanes(to.sub(size, i), STEP)
        with to.loop(0, width) as o:
            place = to.place(w, to.add(to.mul(o, size), i), 2)
            last = load(to, place, "bfloat16", STEP, mask)
            to.write(last, to.place(padded, o, 64), align=64)
        step(whole, padded, I64(64))
    turned = to.room(ir.ArrayType(PAIRS, SIDE))
    for m, c, tile in found:
        to.call("llvm.x86.tilestored64", VOID, tile, turned, I64(64))
        goal = to.place(sums, to.add(c * SIDE * 2 * SIDE, m * SIDE), 4)
        transpose(to, num_columns, f"transpose_{SIDE}_{FEW}", turned, goal, 2 * SIDE * 4)
    to.at.ret_void()
