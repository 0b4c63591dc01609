"""Attention over a cache, row by row: each looks at the positions that it sees, and at no others.

The positions that a mask shows are listed in order and read 16 at a time, with a running maximum
and sum (Milakov & Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135). So what
comes out depends on the keys and values that are seen and on their order: not on where in the cache
they lie, how wide the window is, or what other rows there are. A tree's path gives the same bits as
the chain of its tokens.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped
from llvmlite import ir

from specjax.kernels.call import argument, dim, register, result
from specjax.kernels.ir import F32, I8, I32, I64, LANES, POINTER, VECTOR, VOID, Value, Writer
from specjax.kernels.linear import SIZES, load, widen

TASK = 1 << 17  # multiplications that are worth a task of their own
GROUP = 4  # vectors of positions for which the maximum is found at once


def attention(
    query: Float[Array, "B N H d"],
    keys: Shaped[Array, "B KH T d"],
    values: Shaped[Array, "B KH T e"],
    mask: Bool[Array, "B N W"],
) -> Float[Array, "B N H e"]:
    """Attend on the CPU, in float32 whatever the types; rows that see nothing get zeros."""
    name = register_attention(str(keys.dtype), keys.shape[3], values.shape[3])
    shape = jax.ShapeDtypeStruct((*query.shape[:3], values.shape[3]), jnp.float32)
    return jax.ffi.ffi_call(name, shape)(query.astype(jnp.float32), keys, values, mask)


def register_attention(dtype: str, size: int, size_out: int) -> str:
    """Compile attention for a cache of this type, with heads of these sizes."""
    name = f"specjax_attention_{dtype}_{size}_{size_out}"
    return register(name, functools.partial(write_attention, dtype, size, size_out))


def write_attention(dtype: str, size: int, size_out: int, module: ir.Module):
    """Write attention's body; tasks are shares of the rows (batch, head, node)."""
    write_list(module)
    write_row(module, dtype, size, size_out)

    def sizes(to: Writer, frame: Value):
        batch, nodes, heads = (dim(to, frame, 0, axis) for axis in range(3))
        return batch, nodes, heads, dim(to, frame, 3, 2)

    def count_tasks(to: Writer, frame: Value) -> Value:
        batch, nodes, heads, window = sizes(to, frame)
        rows = to.mul(batch, nodes, heads)
        return to.most(to.least(to.div(to.mul(rows, window, size), TASK), rows), 1)

    to = Writer(module, "body", VOID, [POINTER, I64])
    frame, task = to.function.args
    batch, nodes, heads, window = sizes(to, frame)
    shared, capacity = dim(to, frame, 1, 1), dim(to, frame, 1, 2)
    rows, num_tasks = to.mul(batch, nodes, heads), count_tasks(to, frame)
    group = to.div(heads, shared)
    seen = to.call("malloc", POINTER, to.mul(to.add(window, LANES), 4))
    first = to.div(to.mul(rows, task), num_tasks)
    last = to.div(to.mul(rows, to.add(task, 1)), num_tasks)
    with to.loop(first, last) as row:
        n, rest = to.at.urem(row, nodes), to.div(row, nodes)
        h, b = to.at.urem(rest, heads), to.div(rest, heads)
        at = to.add(to.mul(to.add(to.mul(b, nodes), n), heads), h)
        head = to.mul(to.add(to.mul(b, shared), to.div(h, group)), capacity)
        mask = to.place(argument(to, frame, 3), to.mul(to.add(to.mul(b, nodes), n), window), 1)
        count = to.call("list_seen", I64, mask, window, seen)
        to.call(
            "row", VOID,
            to.place(argument(to, frame, 0), to.mul(at, size), 4),
            to.place(argument(to, frame, 1), to.mul(head, size), SIZES[dtype]),
            to.place(argument(to, frame, 2), to.mul(head, size_out), SIZES[dtype]),
            to.place(result(to, frame), to.mul(at, size_out), 4),
            seen, count,
        )  # fmt: skip
    to.call("free", VOID, seen)
    to.at.ret_void()
    return count_tasks


def write_list(module: ir.Module) -> None:
    """Write ``list_seen(mask, W, seen)``: the positions that a mask shows, in order; their number.

    The list is filled up with its last position, to a multiple of 16.
    """
    to = Writer(module, "list_seen", I64, [POINTER, I64, POINTER])
    mask, window, seen = to.function.args
    count = to.variable(I64(0))
    numbers, bits = ir.VectorType(I32, LANES), ir.IntType(8 * LANES)

    def one(position: Value) -> None:
        now = to.read(I64, count)
        to.write(to.at.trunc(position, I32), to.place(seen, now, 4))
        shown = to.at.zext(to.read(I8, to.place(mask, position, 1)), I64)
        to.write(to.add(now, shown), count)

    whole = to.mul(to.div(window, LANES), LANES)
    with to.loop(0, whole, LANES) as start:
        some = to.read(bits, to.place(mask, start, 1), align=1)
        shown, full = (
            to.at.icmp_unsigned(sign, some, ir.Constant(bits, number))
            for sign, number in (("!=", 0), ("==", int.from_bytes(b"\1" * LANES, "little")))
        )
        with to.at.if_then(full):
            now, index = to.read(I64, count), ir.Constant(numbers, list(range(LANES)))
            positions = to.at.add(to.spread(to.at.trunc(start, I32), LANES), index)
            to.write(positions, to.place(seen, now, 4), align=4)
            to.write(to.add(now, LANES), count)
        mixed = to.at.and_(shown, to.at.not_(full))
        with to.at.if_then(mixed), to.loop(start, to.add(start, LANES)) as position:
            one(position)
    with to.loop(whole, window) as position:
        one(position)
    found = to.read(I64, count)
    with to.at.if_then(to.less(0, found)):
        last = to.read(I32, to.place(seen, to.sub(found, 1), 4))
        with to.loop(found, to.add(found, LANES - 1)) as position:
            to.write(last, to.place(seen, position, 4))
    to.at.ret(found)


def write_row(module: ir.Module, dtype: str, size: int, size_out: int) -> None:
    """Write ``row(q, keys, values, out, seen, count)``."""
    to = Writer(module, "row", VOID, [POINTER] * 5 + [I64])
    q, keys, values, out, seen, count = to.function.args
    zero, lowest = ir.Constant(VECTOR, None), to.splat(-1e30)

    def chunks(total: int) -> list[tuple[int, Value | None]]:
        """List where each vector of a head begins, and which of its lanes there are."""
        return [
            (i, None if i + LANES <= total else to.first_lanes(I64(total - i), LANES))
            for i in range(0, total, LANES)
        ]

    def read(base: Value, i: int, mask: Value | None, kind: str) -> Value:
        return widen(to, load(to, to.place(base, i, SIZES[kind]), kind, LANES, mask), kind)

    def positions(start: Value) -> list[Value]:
        places = [to.place(seen, to.add(start, j), 4) for j in range(LANES)]
        return [to.at.zext(to.read(I32, place), I64) for place in places]

    def larger(a: Value, b: Value) -> Value:
        return to.at.select(to.at.fcmp_ordered(">", a, b), a, b)

    root = to.call("llvm.sqrt.f32", F32, ir.Constant(F32, float(size)))
    scale = to.splat(to.at.fdiv(ir.Constant(F32, 1.0), root))
    parts, results = chunks(size), chunks(size_out)
    # two partial sums for every vector of the result, of even and of odd positions: else each
    # addition waits for the one before
    mixed = [[to.variable(zero) for _ in range(2)] for _ in results]
    best, total = to.variable(lowest), to.variable(zero)
    with to.loop(0, count, GROUP * LANES) as start:
        starts = [to.add(start, t * LANES) for t in range(GROUP)]
        scores = [to.variable(lowest) for _ in starts]
        for place, at in zip(scores, starts, strict=True):
            with to.at.if_then(to.less(at, count)):
                slots, sums = positions(at), [zero] * LANES
                for i, mask in parts:
                    asked = read(q, i, mask, "float32")
                    for j in range(LANES):
                        key = to.place(keys, to.mul(slots[j], size), SIZES[dtype])
                        sums[j] = to.fma(asked, read(key, i, mask, dtype), sums[j])
                found = to.at.fmul(to.sums(sums), scale)
                seen_here = to.first_lanes(to.sub(count, at), LANES)
                to.write(to.at.select(seen_here, found, lowest), place)
        told = [to.read(VECTOR, place) for place in scores]
        before = to.read(VECTOR, best)
        largest = to.halves(functools.reduce(larger, told), larger)
        largest = larger(largest, before)
        to.write(largest, best)
        shrunk = to.exp(to.at.fsub(before, largest))
        probs = [to.exp(to.at.fsub(score, largest)) for score in told]
        more = to.halves(functools.reduce(to.at.fadd, probs), to.at.fadd)
        to.write(to.fma(to.read(VECTOR, total), shrunk, more), total)
        for c in range(len(results)):
            for place in mixed[c]:
                to.write(to.at.fmul(to.read(VECTOR, place), shrunk), place)
        for some, at in zip(probs, starts, strict=True):
            with to.at.if_then(to.less(at, count)):
                slots = positions(at)
                for j in range(LANES):
                    value = to.place(values, to.mul(slots[j], size_out), SIZES[dtype])
                    prob = to.shuffle(some, some, [j] * LANES)
                    for c, (i, mask) in enumerate(results):
                        place = mixed[c][j % 2]
                        read_value = read(value, i, mask, dtype)
                        to.write(to.fma(prob, read_value, to.read(VECTOR, place)), place)
    whole = to.read(VECTOR, total)
    nothing = to.at.fcmp_ordered("==", whole, zero)
    for c, (i, mask) in enumerate(results):
        sum = to.at.fadd(to.read(VECTOR, mixed[c][0]), to.read(VECTOR, mixed[c][1]))
        found = to.at.select(nothing, zero, to.at.fdiv(sum, whole))
        place = to.place(out, i, 4)
        to.store(found, place, mask)
    to.at.ret_void()
