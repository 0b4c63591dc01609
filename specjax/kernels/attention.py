"""Attention over a key-value cache: each row reads only the positions that its mask shows.

These positions are listed in order and read a vector at a time, with a running maximum and sum
(online softmax, Milakov & Gimelshein 2018, arXiv:1805.02867; FlashAttention, Dao et al. 2022,
arXiv:2205.14135). The result depends on the keys and values that are shown and on their order, not
on their cache slots, the window or other rows: a path of a tree gives the same bits as the chain of
its tokens.
"""

import functools
import itertools

import jax
from jaxtyping import Array, Bool, Float, Shaped
from llvmlite import ir

from specjax.kernels import stored
from specjax.kernels.call import CountTasks, argument, dim, register, result
from specjax.kernels.ir import (
    F32,
    I8,
    I32,
    I64,
    LANES,
    POINTER,
    REGISTERS,
    VECTOR,
    VOID,
    Value,
    Writer,
)
from specjax.kernels.stored import SIZES

TASK = 1 << 17  # multiplications per task, at least
GROUP = 4  # vectors of positions per update of the running maximum
# Query heads that share a key head are computed together, so that a loaded key is used for each:
# as many as keep their sums in registers, and into how many parts a vector of positions is divided.
PARTS, MOST_SUMS = {1: 1, 2: 2, 3: 4, 4: 4}, REGISTERS // 2


def attention(
    query: Float[Array, "B N H d"],
    keys: Shaped[Array, "B KH T d"],
    values: Shaped[Array, "B KH T e"],
    mask: Bool[Array, "B N W"],
    sinks: Float[Array, "H"] | None = None,
) -> Float[Array, "B N H e"]:
    """Return attention, computed in float32, in the query's dtype; 0 where the mask is empty.

    A head's sink, in float32, is one more score of its softmax, with a value of 0.
    """
    sizes = keys.shape[3], values.shape[3], query.shape[2] // keys.shape[1]
    has_sinks = sinks is not None
    name = register_attention(str(query.dtype), str(keys.dtype), *sizes, has_sinks=has_sinks)
    shape = jax.ShapeDtypeStruct((*query.shape[:3], values.shape[3]), query.dtype)
    operands = (query, keys, values, mask, *((sinks,) if has_sinks else ()))
    return jax.ffi.ffi_call(name, shape)(*operands)


def register_attention(
    query_dtype: str,
    cache_dtype: str,
    size: int,
    size_out: int,
    group: int,
    *,
    has_sinks: bool = False,
) -> str:
    """Compile attention for these dtypes and head sizes, and return the name XLA calls it by.

    ``group`` query heads share a key head.
    """
    vectors = -(-size_out // LANES)
    heads = max(n for n in PARTS if group % n == 0 and n * vectors <= max(MOST_SUMS, vectors))
    sizes = size, size_out, heads
    kind = "specjax_sink_attention" if has_sinks else "specjax_attention"
    name = "_".join((kind, query_dtype, cache_dtype, *map(str, sizes)))
    facts = query_dtype, cache_dtype, *sizes, has_sinks
    return register(name, functools.partial(write_attention, *facts))


def write_attention(
    query_dtype: str,
    cache_dtype: str,
    size: int,
    size_out: int,
    together: int,
    has_sinks: bool,
    module: ir.Module,
) -> CountTasks:
    """Write the kernel's body; a task is a range of the rows (batch, ``together`` heads, node)."""
    write_list(module)
    write_row(module, query_dtype, cache_dtype, size, size_out, together, has_sinks)

    def sizes(to: Writer, frame: Value):
        batch, nodes, heads = (dim(to, frame, 0, axis) for axis in range(3))
        return batch, nodes, heads, dim(to, frame, 3, 2)

    def count_tasks(to: Writer, frame: Value) -> Value:
        batch, nodes, heads, window = sizes(to, frame)
        most = to.div(to.mul(batch, nodes, heads), together)
        work = to.div(to.mul(batch, nodes, heads, window, size), TASK)
        return to.most(to.least(work, most), 1)

    to = Writer(module, "body", VOID, [POINTER, I64])
    frame, task = to.function.args
    batch, nodes, heads, window = sizes(to, frame)
    shared, capacity = dim(to, frame, 1, 1), dim(to, frame, 1, 2)
    tiles = to.div(heads, together)
    rows, num_tasks = to.mul(batch, nodes, tiles), count_tasks(to, frame)
    group = to.div(heads, shared)
    visible = to.call("malloc", POINTER, to.mul(to.add(window, LANES), 4))
    first = to.div(to.mul(rows, task), num_tasks)
    last = to.div(to.mul(rows, to.add(task, 1)), num_tasks)
    with to.loop(first, last) as row:
        n, rest = to.at.urem(row, nodes), to.div(row, nodes)
        h, b = to.mul(to.at.urem(rest, tiles), together), to.div(rest, tiles)
        at = to.add(to.mul(to.add(to.mul(b, nodes), n), heads), h)
        head = to.mul(to.add(to.mul(b, shared), to.div(h, group)), capacity)
        mask = to.place(argument(to, frame, 3), to.mul(to.add(to.mul(b, nodes), n), window), 1)
        count = to.call("list_visible", I64, mask, window, visible)
        to.call(
            "row", VOID,
            to.place(argument(to, frame, 0), to.mul(at, size), SIZES[query_dtype]),
            to.place(argument(to, frame, 1), to.mul(head, size), SIZES[cache_dtype]),
            to.place(argument(to, frame, 2), to.mul(head, size_out), SIZES[cache_dtype]),
            to.place(result(to, frame), to.mul(at, size_out), SIZES[query_dtype]),
            visible, count,
            *((to.place(argument(to, frame, 4), h, 4),) if has_sinks else ()),
        )  # fmt: skip
    to.call("free", VOID, visible)
    to.at.ret_void()
    return count_tasks


def write_list(module: ir.Module) -> None:
    """Write ``list_visible(mask, W, visible)``: list the positions of a mask, return how many.

    The list is padded with its last position to whole vectors.
    """
    to = Writer(module, "list_visible", I64, [POINTER, I64, POINTER])
    mask, window, visible = to.function.args
    count = to.variable(I64(0))
    numbers, bits = ir.VectorType(I32, LANES), ir.IntType(8 * LANES)

    def one(position: Value) -> None:
        now = to.read(I64, count)
        to.write(to.at.trunc(position, I32), to.place(visible, now, 4))
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
            to.write(positions, to.place(visible, now, 4), align=4)
            to.write(to.add(now, LANES), count)
        mixed = to.at.and_(shown, to.at.not_(full))
        with to.at.if_then(mixed), to.loop(start, to.add(start, LANES)) as position:
            one(position)
    with to.loop(whole, window) as position:
        one(position)
    found = to.read(I64, count)
    with to.at.if_then(to.less(0, found)):
        last = to.read(I32, to.place(visible, to.sub(found, 1), 4))
        with to.loop(found, to.add(found, LANES - 1)) as position:
            to.write(last, to.place(visible, position, 4))
    to.at.ret(found)


def write_row(
    module: ir.Module,
    query_dtype: str,
    cache_dtype: str,
    size: int,
    size_out: int,
    together: int,
    has_sinks: bool,
) -> None:
    """Write ``row(q, keys, values, out, visible, count)`` for some heads that share keys.

    ``has_sinks``: a last argument is the address of their sinks.
    """
    to = Writer(module, "row", VOID, [POINTER] * 5 + [I64] + [POINTER] * has_sinks)
    q, keys, values, out, visible, count, *sinks = to.function.args
    zero, lowest = ir.Constant(VECTOR, None), to.splat(-1e30)
    heads = range(together)

    def chunks(total: int) -> list[tuple[int, Value | None]]:
        """Return the first index and the lane mask (None: all lanes) of each vector of a head."""
        return [
            (i, None if i + LANES <= total else to.first_lanes(I64(total - i), LANES))
            for i in range(0, total, LANES)
        ]

    def read(base: Value, i: int | Value, mask: Value | None, kind: str) -> Value:
        return stored.read(to, to.place(base, i, SIZES[kind]), kind, mask)

    def positions(start: Value, lanes: range) -> dict[int, Value]:
        places = {j: to.place(visible, to.add(start, j), 4) for j in lanes}
        return {j: to.at.zext(to.read(I32, place), I64) for j, place in places.items()}

    def larger(a: Value, b: Value) -> Value:
        return to.at.select(to.at.fcmp_ordered(">", a, b), a, b)

    def score(start: Value, lanes: range) -> list[Value]:
        """Return each head's dot products of its query with the keys of some positions, by lane."""
        slots = positions(start, lanes)
        sums = [dict.fromkeys(lanes, zero) for _ in heads]
        for i, mask in parts:
            queries = [read(q, h * size + i, mask, query_dtype) for h in heads]
            for j in lanes:
                key = read(keys, to.add(to.mul(slots[j], size), i), mask, cache_dtype)
                for h in heads:
                    sums[h][j] = to.fma(queries[h], key, sums[h][j])
        return [to.sums(list(sums[h].values())) for h in heads]

    root = to.call("llvm.sqrt.f32", F32, ir.Constant(F32, float(size)))
    scale = to.splat(to.at.fdiv(ir.Constant(F32, 1.0), root))
    parts, results = chunks(size), chunks(size_out)
    # two partial sums per vector of a result, of even and odd positions, if registers suffice:
    # otherwise each addition waits for the one before
    turns = 2 if 2 * together * len(results) <= MOST_SUMS else 1
    mixed = [[[to.variable(zero) for _ in range(turns)] for _ in results] for _ in heads]
    if has_sinks:  # the first score of all, whose weight of 1 shrinks as the maximum grows
        first = [to.splat(to.read(F32, to.place(sinks[0], h, 4))) for h in heads]
    else:
        first = [lowest for _ in heads]
    best = [to.variable(sink) for sink in first]
    total = [to.variable(to.splat(1.0) if has_sinks else zero) for _ in heads]
    step = LANES // PARTS[together]
    with to.loop(0, count, GROUP * LANES) as start:
        starts = [to.add(start, t * LANES) for t in range(GROUP)]
        scores = [[to.variable(lowest) for _ in starts] for _ in heads]
        for t, at in enumerate(starts):
            with to.at.if_then(to.less(at, count)):
                found = [score(at, range(j, j + step)) for j in range(0, LANES, step)]
                in_list = to.first_lanes(to.sub(count, at), LANES)
                for h in heads:
                    each = to.at.fmul(to.side_by_side([some[h] for some in found], step), scale)
                    to.write(to.at.select(in_list, each, lowest), scores[h][t])
        probs = []
        for h in heads:
            found = [to.read(VECTOR, place) for place in scores[h]]
            before = to.read(VECTOR, best[h])
            largest = to.halves(functools.reduce(larger, found), larger)
            largest = larger(largest, before)
            to.write(largest, best[h])
            shrunk = to.exp(to.at.fsub(before, largest))
            probs.append([to.exp(to.at.fsub(one, largest)) for one in found])
            more = to.halves(functools.reduce(to.at.fadd, probs[h]), to.at.fadd)
            to.write(to.fma(to.read(VECTOR, total[h]), shrunk, more), total[h])
            for place in itertools.chain(*mixed[h]):
                to.write(to.at.fmul(to.read(VECTOR, place), shrunk), place)
        for t, at in enumerate(starts):
            with to.at.if_then(to.less(at, count)):
                for j, slot in positions(at, range(LANES)).items():
                    value = to.place(values, to.mul(slot, size_out), SIZES[cache_dtype])
                    shares = [to.shuffle(probs[h][t], probs[h][t], [j] * LANES) for h in heads]
                    for c, (i, mask) in enumerate(results):
                        found = read(value, i, mask, cache_dtype)
                        for h in heads:
                            place = mixed[h][c][j % turns]
                            to.write(to.fma(shares[h], found, to.read(VECTOR, place)), place)
    for h in heads:
        whole = to.read(VECTOR, total[h])
        nothing = to.at.fcmp_ordered("==", whole, zero)
        for (i, mask), places in zip(results, mixed[h], strict=True):
            sum = functools.reduce(to.at.fadd, [to.read(VECTOR, place) for place in places])
            found = to.at.select(nothing, zero, to.at.fdiv(sum, whole))
            goal = to.place(out, h * size_out + i, SIZES[query_dtype])
            stored.store(to, found, goal, query_dtype, mask)
    to.at.ret_void()
