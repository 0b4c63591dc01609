"""Attention over a key-value cache: each row reads only the positions that its mask shows.

These positions are listed in order and read in groups, with a running maximum and sum (online
softmax, Milakov & Gimelshein 2018, arXiv:1805.02867; FlashAttention, Dao et al. 2022,
arXiv:2205.14135). The result depends on the keys and values that are shown and on their order, not
on their cache slots, the window or other rows: a path of a tree gives the same bits as the chain of
its tokens. A ring's positions are listed from its oldest one, around the end.

Rows whose lists begin alike, as those of a prompt do, read a group of keys and values together: the
eight layers of the bundled model took 6.1 ms for a prompt of 512 tokens, and 9.6 one row after the
other (one Xeon with AVX-512, 2 threads). Keys are turned, so that a vector has a score of several
positions: no sums over lanes are needed.
"""

import functools
from dataclasses import dataclass

import jax
from jaxtyping import Array, Bool, Float, Int, Shaped
from llvmlite import ir

from specjax.kernels import amx, amx_attention, stored
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

TASK = 1 << 15  # multiplications per task, at least
GROUP = 4  # vectors of positions per update of the running maximum
POSITIONS = GROUP * LANES
NODES = 32  # of a batch row, that may read keys together
MOST_HEADS = 4  # that share a key head, and are computed together: a loaded key is used for each
MOST_SUMS = REGISTERS * 3 // 4  # vectors of sums, which stay in registers
VECTOR_BYTES = 4 * LANES
CACHE_LINE = 64  # bytes


def attention(
    query: Float[Array, "B N H d"],
    keys: Shaped[Array, "B KH T d"],
    values: Shaped[Array, "B KH T e"],
    mask: Bool[Array, "B N W"],
    sinks: Float[Array, "H"] | None = None,
    first: Int[Array, "B"] | None = None,
) -> Float[Array, "B N H e"]:
    """Return attention, computed in float32, in the query's dtype; 0 where the mask is empty.

    A head's sink, in float32, is one more score of its softmax, with a value of 0. ``first`` is the
    slot of each row's oldest position in a ring, in int32.
    """
    sizes = keys.shape[3], values.shape[3], query.shape[2] // keys.shape[1]
    further = [one for one in (sinks, first) if one is not None]
    facts = {"has_sinks": sinks is not None, "is_ring": first is not None}
    name = register_attention(str(query.dtype), str(keys.dtype), *sizes, **facts)
    shape = jax.ShapeDtypeStruct((*query.shape[:3], values.shape[3]), query.dtype)
    return jax.ffi.ffi_call(name, shape)(query, keys, values, mask, *further)


def register_attention(
    query_dtype: str,
    cache_dtype: str,
    size: int,
    size_out: int,
    group: int,
    *,
    has_sinks: bool = False,
    is_ring: bool = False,
) -> str:
    """Compile attention for these dtypes and head sizes, and return the name XLA calls it by.

    ``group`` query heads share a key head.
    """
    vectors = -(-size_out // LANES)
    in_tiles = amx_attention.can_attend(query_dtype, cache_dtype, size, size_out)
    if in_tiles:
        heads = max(n for n in range(1, amx.SIDE + 1) if group % n == 0)
    else:
        several = range(2, MOST_HEADS + 1)
        heads = max((n for n in several if group % n == 0 and n * vectors <= MOST_SUMS), default=1)
    kind = "specjax" + "_ring" * is_ring + "_sink" * has_sinks + "_amx" * in_tiles + "_attention"
    name = "_".join((kind, query_dtype, cache_dtype, *map(str, (size, size_out, heads))))
    kernel = Kernel(query_dtype, cache_dtype, size, size_out, heads, has_sinks, is_ring, in_tiles)
    return register(name, kernel.write)


@dataclass(frozen=True)
class Kernel:
    """What a kernel is written for; its methods write functions of the module.

    ``heads`` query heads that share a key head are a row's.
    """

    query_dtype: str
    cache_dtype: str
    size: int
    size_out: int
    heads: int
    has_sinks: bool
    is_ring: bool
    in_tiles: bool

    @property
    def results(self) -> list[int]:
        """Return the first index of each vector of a head's result."""
        return list(range(0, self.size_out, LANES))

    @property
    def rows(self) -> int:
        """Return how many rows keep their sums in registers together."""
        return max(1, MOST_SUMS // (self.heads * len(self.results)))

    @property
    def state_bytes(self) -> int:
        """Return the bytes of a row's state: of each head maximum, total, and sums of values."""
        return self.heads * (2 + len(self.results)) * VECTOR_BYTES

    def run_bytes(self, to: Writer, nodes: Value) -> Value:
        """Return the bytes that ``run`` needs for so many nodes."""
        if self.in_tiles:
            room = amx_attention.Room(self.size, self.size_out)
            return room.num_bytes(to, to.mul(nodes, self.heads))
        row_bytes = self.state_bytes + self.heads * self.size * 4
        return to.add(to.mul(nodes, row_bytes), self.size * POSITIONS * 4)

    def write(self, module: ir.Module) -> CountTasks:
        """Write the kernel's body; a task is a range of blocks of nodes, each with some heads."""
        write_list(module)
        if self.in_tiles:
            amx_attention.write_run(
                module, self.size, self.size_out, self.heads, has_sinks=self.has_sinks
            )
        else:
            self.write_turn(module)
            for rows in {1, self.rows}:
                self.write_group(module, rows)
            self.write_run(module)
        self.write_block(module)

        def sizes(to: Writer, frame: Value):
            batch, nodes, heads = (dim(to, frame, 0, axis) for axis in range(3))
            return batch, nodes, heads, dim(to, frame, 3, 2)

        def count_tasks(to: Writer, frame: Value) -> Value:
            batch, nodes, heads, window = sizes(to, frame)
            blocks = to.div(to.add(nodes, NODES - 1), NODES)
            most = to.div(to.mul(batch, blocks, heads), self.heads)
            work = to.div(to.mul(batch, nodes, heads, window, self.size), TASK)
            return to.most(to.least(work, most), 1)

        to = Writer(module, "body", VOID, [POINTER, I64])
        frame, task = to.function.args
        batch, nodes, heads, window = sizes(to, frame)
        shared, capacity = dim(to, frame, 1, 1), dim(to, frame, 1, 2)
        tiles, blocks = to.div(heads, self.heads), to.div(to.add(nodes, NODES - 1), NODES)
        total, num_tasks = to.mul(batch, blocks, tiles), count_tasks(to, frame)
        group = to.div(heads, shared)
        first = to.div(to.mul(total, task), num_tasks)
        last = to.div(to.mul(total, to.add(task, 1)), num_tasks)
        if self.in_tiles:
            to.call("configure", VOID, I64(amx.SIDE))
        with to.loop(first, last) as number:
            # the last nodes of a prompt, which see most, come first
            block = to.sub(to.sub(blocks, 1), to.at.urem(number, blocks))
            rest = to.div(number, blocks)
            h, b = to.mul(to.at.urem(rest, tiles), self.heads), to.div(rest, tiles)
            n = to.mul(block, NODES)
            row = to.add(to.mul(b, nodes), n)
            at = to.add(to.mul(row, heads), h)
            head = to.mul(to.add(to.mul(b, shared), to.div(h, group)), capacity)
            oldest = I64(0)
            if self.is_ring:
                place = to.place(argument(to, frame, 4 + self.has_sinks), b, 4)
                oldest = to.at.zext(to.read(I32, place), I64)
            to.call(
                "block", VOID,
                to.place(argument(to, frame, 0), to.mul(at, self.size), SIZES[self.query_dtype]),
                to.place(argument(to, frame, 1), to.mul(head, self.size), SIZES[self.cache_dtype]),
                to.place(
                    argument(to, frame, 2), to.mul(head, self.size_out), SIZES[self.cache_dtype]
                ),
                to.place(argument(to, frame, 3), to.mul(row, window), 1),
                to.place(result(to, frame), to.mul(at, self.size_out), SIZES[self.query_dtype]),
                to.least(to.sub(nodes, n), NODES), heads, window, capacity, oldest,
                *((to.place(argument(to, frame, 4), h, 4),) if self.has_sinks else ()),
            )  # fmt: skip
        if self.in_tiles:
            to.call("llvm.x86.tilerelease", VOID)
        to.at.ret_void()
        return count_tasks

    def write_block(self, module: ir.Module) -> None:
        """Write ``block(q, keys, values, mask, out, nodes, H, W, T, oldest)``.

        It computes up to ``NODES`` rows. The node that sees most leads: nodes whose lists begin its
        list read keys together, others by themselves. ``has_sinks``: a last argument is the address
        of the sinks.
        """
        kinds = [POINTER] * 5 + [I64] * 5 + [POINTER] * self.has_sinks
        to = Writer(module, "block", VOID, kinds)
        q, keys, values, mask, out, nodes, num_heads, window, capacity, oldest, *sinks = (
            to.function.args
        )
        numbers = ir.ArrayType(I64, NODES)
        counts, lasts, together = (to.room(numbers) for _ in range(3))
        list_bytes = to.mul(to.add(window, LANES), 4)
        run_bytes = self.run_bytes(to, nodes)
        bytes = to.add(run_bytes, to.mul(list_bytes, 2), CACHE_LINE - 1)
        bytes = to.mul(to.div(bytes, CACHE_LINE), CACHE_LINE)
        scratch = to.call("aligned_alloc", POINTER, I64(CACHE_LINE), bytes)
        lists = to.place(scratch, run_bytes, 1)
        longest, spare = to.variable(lists), to.variable(to.place(lists, list_bytes, 1))
        most, leader = to.variable(I64(0)), to.variable(I64(0))

        def mask_of(node: Value) -> Value:
            return to.place(mask, to.mul(node, window), 1)

        def list_of(node: Value, here: Value) -> Value:
            none = I64(0)
            count = to.call("list_visible", I64, mask_of(node), oldest, window, here, none)
            if self.is_ring:
                count = to.call("list_visible", I64, mask_of(node), none, oldest, here, count)
            return count

        def alike(node: Value, other: Value, last: Value) -> Value:
            """Return whether masks are the same up to the last position of a list."""
            if not self.is_ring:
                differ = to.call("memcmp", I32, mask_of(node), other, to.add(last, 1))
                return to.at.icmp_signed("==", differ, I32(0))
            around, end = to.less(last, oldest), to.add(last, 1)
            older = to.at.select(around, to.sub(window, oldest), to.sub(end, oldest))
            newer = to.at.select(around, end, I64(0))
            differ = to.at.or_(
                to.call("memcmp", I32, *(to.place(x, oldest, 1) for x in (mask_of(node), other)),
                        older),
                to.call("memcmp", I32, mask_of(node), other, newer),
            )  # fmt: skip
            return to.at.icmp_signed("==", differ, I32(0))

        with to.loop(0, nodes) as node:
            here = to.read(POINTER, spare)
            count = list_of(node, here)
            last = to.read(I32, to.place(here, to.most(to.sub(count, 1), 0), 4))
            to.write(count, to.place(counts, node, 8))
            to.write(to.at.zext(last, I64), to.place(lasts, node, 8))
            with to.at.if_then(to.less(to.read(I64, most), count)):
                to.write(count, most)
                to.write(node, leader)
                to.write(to.read(POINTER, longest), spare)
                to.write(here, longest)

        def run(some: Value, num: Value, visible: Value) -> None:
            to.call(
                "run", VOID, q, keys, values, out, some, num, counts, visible, num_heads, capacity,
                scratch, *sinks,
            )  # fmt: skip

        num_together = to.variable(I64(0))
        lead = mask_of(to.read(I64, leader))
        with to.loop(0, nodes) as node:
            count = to.read(I64, to.place(counts, node, 8))
            with to.at.if_else(to.less(count, 1)) as (blind, sees):
                with blind:
                    goal = to.mul(node, num_heads, self.size_out)
                    goal = to.place(out, goal, SIZES[self.query_dtype])
                    to.clear(goal, I64(self.heads * self.size_out * SIZES[self.query_dtype]))
                with sees:
                    same = alike(node, lead, to.read(I64, to.place(lasts, node, 8)))
                    with to.at.if_else(same) as (joins, alone):
                        with joins:
                            number = to.read(I64, num_together)
                            to.write(node, to.place(together, number, 8))
                            to.write(to.add(number, 1), num_together)
                        with alone:
                            here, only = to.read(POINTER, spare), to.room(I64)
                            list_of(node, here)
                            to.write(node, only)
                            run(only, I64(1), here)
        run(together, to.read(I64, num_together), to.read(POINTER, longest))
        to.call("free", VOID, scratch)
        to.at.ret_void()

    def write_run(self, module: ir.Module) -> None:
        """Write ``run(q, keys, values, out, nodes, num, counts, visible, H, T, scratch)``.

        It computes the rows of ``num`` nodes, whose lists begin ``visible``; each sees something.
        """
        more = [POINTER] * (1 + self.has_sinks)
        kinds = [POINTER] * 5 + [I64] + [POINTER] * 2 + [I64] * 2 + more
        to = Writer(module, "run", VOID, kinds)
        q, keys, values, out, nodes, num, all_counts, visible, num_heads, _, scratch, *sinks = (
            to.function.args
        )
        query_bytes = self.heads * self.size * 4
        turned = scratch
        states = to.place(turned, self.size * POSITIONS * 4, 1)
        queries = to.place(states, to.mul(num, self.state_bytes), 1)
        counts = to.room(ir.ArrayType(I64, NODES))
        most = to.variable(I64(0))
        with to.loop(0, num) as row:
            node = to.read(I64, to.place(nodes, row, 8))
            count = to.read(I64, to.place(all_counts, node, 8))
            to.write(count, to.place(counts, row, 8))
            to.write(to.most(count, to.read(I64, most)), most)
            query = to.place(q, to.mul(node, num_heads, self.size), SIZES[self.query_dtype])
            goal = to.place(queries, row, query_bytes)
            for i, mask in chunks(to, self.heads * self.size):
                found = stored.read(
                    to, to.place(query, i, SIZES[self.query_dtype]), self.query_dtype, mask
                )
                stored.store(to, found, to.place(goal, i, 4), "float32", mask)
            zero = ir.Constant(VECTOR, None)
            for h in range(self.heads):
                # a sink is the first score of all, whose weight of 1 shrinks as the maximum grows
                best, total = to.splat(-1e30), zero
                if self.has_sinks:
                    best = to.splat(to.read(F32, to.place(sinks[0], h, 4)))
                    total = to.splat(1.0)
                for k, value in enumerate((best, total, *(zero for _ in self.results))):
                    to.write(value, self.part(to, states, row, h, k), align=4)

        def group(row: Value, rows: int, start: Value) -> None:
            to.call(
                f"group_{rows}", VOID,
                to.place(queries, row, query_bytes), turned, values, to.place(visible, start, 4),
                to.place(states, row, self.state_bytes), to.place(counts, row, 8), start,
            )  # fmt: skip

        def each(first: Value, last: Value, start: Value) -> None:
            with to.loop(first, last) as row:
                count = to.read(I64, to.place(counts, row, 8))
                with to.at.if_then(to.less(start, count)):
                    group(row, 1, start)

        whole = to.mul(to.div(num, self.rows), self.rows) if self.rows > 1 else I64(0)
        with to.loop(0, to.read(I64, most), POSITIONS) as start:
            left = to.sub(to.read(I64, most), start)
            to.call("turn", VOID, keys, to.place(visible, start, 4), left, turned)
            with to.loop(0, whole, self.rows) as row:
                some = [to.read(I64, to.place(counts, to.add(row, r), 8)) for r in range(self.rows)]
                fewest = functools.reduce(to.least, some)
                with to.at.if_else(to.less(start, fewest)) as (all, not_all):
                    with all:
                        group(row, self.rows, start)
                    with not_all:
                        each(row, to.add(row, self.rows), start)
            each(whole, num, start)

        with to.loop(0, num) as row:
            node = to.read(I64, to.place(nodes, row, 8))
            base = to.place(out, to.mul(node, num_heads, self.size_out), SIZES[self.query_dtype])
            for h in range(self.heads):
                total = to.read(VECTOR, self.part(to, states, row, h, 1), align=4)
                for k, (i, mask) in enumerate(chunks(to, self.size_out)):
                    sum = to.read(VECTOR, self.part(to, states, row, h, 2 + k), align=4)
                    goal = to.place(base, h * self.size_out + i, SIZES[self.query_dtype])
                    stored.store(to, to.at.fdiv(sum, total), goal, self.query_dtype, mask)
        to.at.ret_void()

    def part(self, to: Writer, states: Value, row: int | Value, head: int, k: int) -> Value:
        """Return the address of a vector of a row's state."""
        inner = (head * (2 + len(self.results)) + k) * VECTOR_BYTES
        return to.place(states, to.add(to.mul(row, self.state_bytes), inner), 1)

    def write_turn(self, module: ir.Module) -> None:
        """Write ``turn(keys, visible, left, turned)``: a group's keys, [size, POSITIONS]."""
        to = Writer(module, "turn", VOID, [POINTER, POINTER, I64, POINTER])
        keys, visible, left, turned = to.function.args
        for start in range(0, POSITIONS, LANES):
            with to.at.if_then(to.less(start, left)):
                slots = [to.read(I32, to.place(visible, start + j, 4)) for j in range(LANES)]
                slots = [to.mul(to.at.zext(slot, I64), self.size) for slot in slots]
                for i, mask in chunks(to, self.size):
                    lines = [
                        stored.read(
                            to,
                            to.place(keys, to.add(slot, i), SIZES[self.cache_dtype]),
                            self.cache_dtype,
                            mask,
                        )
                        for slot in slots
                    ]
                    lines = to.transpose(lines)[: self.size - i]
                    for k, line in enumerate(lines):
                        goal = to.place(turned, (i + k) * POSITIONS + start, 4)
                        to.write(line, goal, align=4)
        to.at.ret_void()

    def write_group(self, module: ir.Module, rows: int) -> None:
        """Write ``group_rows(q, turned, values, visible, state, counts, start)``.

        It attends to the next positions of the list, of which each row sees at least one.
        """
        to = Writer(module, f"group_{rows}", VOID, [POINTER] * 6 + [I64])
        q, turned, values, visible, state, counts, start = to.function.args
        zero, lowest = ir.Constant(VECTOR, None), to.splat(-1e30)
        root = to.call("llvm.sqrt.f32", F32, ir.Constant(F32, float(self.size)))
        scale = to.splat(to.at.fdiv(ir.Constant(F32, 1.0), root))
        queries = [(r, h) for r in range(rows) for h in range(self.heads)]
        left = [
            to.least(to.sub(to.read(I64, to.place(counts, r, 8)), start), POSITIONS)
            for r in range(rows)
        ]
        fewest, most = functools.reduce(to.least, left), functools.reduce(to.most, left)
        probs = to.room(ir.ArrayType(F32, len(queries) * POSITIONS))  # scores, at first

        def number(base: Value, index: int | Value) -> Value:
            return to.splat(to.read(F32, to.place(base, index, 4)))

        def score_of(k: int, t: int) -> Value:
            return to.place(probs, k * POSITIONS + t * LANES, 4)

        at_once = next(n for n in (4, 2, 1) if n * len(queries) <= MOST_SUMS or n == 1)
        for first in range(0, GROUP, at_once):
            turns = range(first, first + at_once)
            with to.at.if_else(to.less(first * LANES, most)) as (some, none):
                with some:
                    sums = [[to.variable(zero) for _ in turns] for _ in queries]
                    with to.loop(0, self.size) as i:
                        line = to.place(turned, to.mul(i, POSITIONS), 4)
                        keys = [to.read(VECTOR, to.place(line, t * LANES, 4), 4) for t in turns]
                        for k, each in enumerate(sums):
                            one = number(q, to.add(i, k * self.size))
                            for place, key in zip(each, keys, strict=True):
                                to.write(to.fma(one, key, to.read(VECTOR, place)), place)
                    for t in range(at_once):
                        for k, (r, _) in enumerate(queries):
                            found = to.at.fmul(to.read(VECTOR, sums[k][t]), scale)
                            in_list = to.first_lanes(
                                to.most(to.sub(left[r], (first + t) * LANES), 0), LANES
                            )
                            found = to.at.select(in_list, found, lowest)
                            to.write(found, score_of(k, first + t), align=4)
                with none:
                    for k in range(len(queries)):
                        for t in turns:
                            to.write(lowest, score_of(k, t), align=4)

        def larger(a: Value, b: Value) -> Value:
            return to.at.select(to.at.fcmp_ordered(">", a, b), a, b)

        mixed = []
        for k, (r, h) in enumerate(queries):
            best, total, *places = (
                self.part(to, state, r, h, k) for k in range(2 + len(self.results))
            )
            found = [to.read(VECTOR, score_of(k, t), align=4) for t in range(GROUP)]
            before = to.read(VECTOR, best, align=4)
            largest = larger(to.halves(functools.reduce(larger, found), larger), before)
            to.write(largest, best, align=4)
            shrunk = to.exp(to.at.fsub(before, largest))
            found = [to.exp(to.at.fsub(one, largest)) for one in found]
            for t, one in enumerate(found):
                to.write(one, score_of(k, t), align=4)
            more = to.halves(functools.reduce(to.at.fadd, found), to.at.fadd)
            to.write(to.fma(to.read(VECTOR, total, align=4), shrunk, more), total, align=4)
            sums = [to.at.fmul(to.read(VECTOR, place, align=4), shrunk) for place in places]
            mixed.append([to.variable(sum) for sum in sums])

        def mix(some: list[int], first: Value, last: Value) -> None:
            with to.loop(first, last) as j:
                slot = to.at.zext(to.read(I32, to.place(visible, j, 4)), I64)
                value = to.place(values, to.mul(slot, self.size_out), SIZES[self.cache_dtype])
                found = [
                    stored.read(
                        to, to.place(value, i, SIZES[self.cache_dtype]), self.cache_dtype, mask
                    )
                    for i, mask in chunks(to, self.size_out)
                ]
                for k in some:
                    share = number(probs, to.add(j, k * POSITIONS))
                    for place, one in zip(mixed[k], found, strict=True):
                        to.write(to.fma(share, one, to.read(VECTOR, place)), place)

        mix(list(range(len(queries))), I64(0), fewest)
        if rows > 1:  # what a row sees and not its neighbour
            for r in range(rows):
                mix([k for k, at in enumerate(queries) if at[0] == r], fewest, left[r])
        for k, (r, h) in enumerate(queries):
            for c, place in enumerate(mixed[k]):
                to.write(to.read(VECTOR, place), self.part(to, state, r, h, 2 + c), align=4)
        to.at.ret_void()


def chunks(to: Writer, total: int) -> list[tuple[int, Value | None]]:
    """Return the first index and the lane mask (None: all lanes) of each vector of numbers."""
    return [
        (i, None if i + LANES <= total else to.first_lanes(I64(total - i), LANES))
        for i in range(0, total, LANES)
    ]


def write_list(module: ir.Module) -> None:
    """Write ``list_visible(mask, start, end, visible, known)``, which continues a list.

    It lists the positions that a part of a mask shows, behind those that are ``known``, and returns
    how many it has then. The list is padded with its last position to whole vectors.
    """
    to = Writer(module, "list_visible", I64, [POINTER, I64, I64, POINTER, I64])
    mask, begin, end, visible, known = to.function.args
    count = to.variable(known)
    numbers, bits = ir.VectorType(I32, LANES), ir.IntType(8 * LANES)

    def one(position: Value) -> None:
        now = to.read(I64, count)
        to.write(to.at.trunc(position, I32), to.place(visible, now, 4))
        shown = to.at.zext(to.read(I8, to.place(mask, position, 1)), I64)
        to.write(to.add(now, shown), count)

    whole = to.add(begin, to.mul(to.div(to.sub(end, begin), LANES), LANES))
    with to.loop(begin, whole, LANES) as start:
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
    with to.loop(whole, end) as position:
        one(position)
    found = to.read(I64, count)
    with to.at.if_then(to.less(0, found)):
        last = to.read(I32, to.place(visible, to.sub(found, 1), 4))
        with to.loop(found, to.add(found, LANES - 1)) as position:
            to.write(last, to.place(visible, position, 4))
    to.at.ret(found)
