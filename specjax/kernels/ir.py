"""A builder of LLVM IR functions: loops, vectors and memory as Python calls."""

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir


def has_feature(name: str) -> bool:
    """Return whether this CPU has a feature, by LLVM's name."""
    return bool(llvm.get_host_cpu_features().get(name))


# Numbers of float32 in a vector, and how many vectors the registers hold: AVX-512 has 32 of 16,
# AVX2 16 of 8; 8 are two of NEON's registers, of which there are 32.
LANES, REGISTERS = (16, 32) if has_feature("avx512f") else (8, 16)
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, POINTER, VOID = ir.HalfType(), ir.FloatType(), ir.PointerType(), ir.VoidType()
VECTOR = ir.VectorType(F32, LANES)
Value = Any


class BFloat(ir.types.Type):
    """A vector of LLVM's bfloat, a type that llvmlite lacks."""

    def __init__(self, lanes: int):
        self.lanes = lanes

    def _to_string(self) -> str:
        return f"<{self.lanes} x bfloat>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat) and other.lanes == self.lanes

    def __hash__(self) -> int:
        return hash(("bfloat", self.lanes))


class Writer:
    """Writes one function. Python integers stand for 64-bit constants."""

    def __init__(self, module: ir.Module, name: str, returns: ir.Type, takes: Sequence[ir.Type]):
        self.module = module
        self.function = ir.Function(module, ir.FunctionType(returns, takes), name)
        self.at = ir.IRBuilder(self.function.append_basic_block("entry"))

    def index(self, value: int | Value) -> Value:
        """Return a 64-bit integer value."""
        return ir.Constant(I64, value) if isinstance(value, int) else value

    def add(self, *terms: int | Value) -> Value:
        """Return the sum of 64-bit integers."""
        return functools.reduce(self.at.add, map(self.index, terms))

    def mul(self, *factors: int | Value) -> Value:
        """Return the product of 64-bit integers."""
        return functools.reduce(self.at.mul, map(self.index, factors))

    def sub(self, a: int | Value, b: int | Value) -> Value:
        """Return a - b of 64-bit integers."""
        return self.at.sub(self.index(a), self.index(b))

    def div(self, a: int | Value, b: int | Value) -> Value:
        """Return a // b of unsigned 64-bit integers."""
        return self.at.udiv(self.index(a), self.index(b))

    def less(self, a: int | Value, b: int | Value) -> Value:
        """Return a < b of signed 64-bit integers."""
        return self.at.icmp_signed("<", self.index(a), self.index(b))

    def least(self, a: int | Value, b: int | Value) -> Value:
        """Return the smaller of two 64-bit integers."""
        a, b = self.index(a), self.index(b)
        return self.at.select(self.less(a, b), a, b)

    def most(self, a: int | Value, b: int | Value) -> Value:
        """Return the larger of two 64-bit integers."""
        a, b = self.index(a), self.index(b)
        return self.at.select(self.less(a, b), b, a)

    def variable(self, initial: Value) -> Value:
        """Return the address of a local variable, which LLVM keeps in a register."""
        place = self.room(initial.type)
        self.at.store(initial, place)
        return place

    def room(self, kind: ir.Type) -> Value:
        """Return the address of stack memory for a value of this type."""
        with self.at.goto_entry_block():
            place = self.at.alloca(kind)
        place.type = POINTER
        return place

    def read(self, kind: ir.Type, place: Value, align: int | None = None) -> Value:
        """Load a value of type ``kind`` from an address."""
        return self.at.load(place, align=align, typ=kind)

    def prefetch(self, place: Value) -> None:
        """Ask for the line at an address, which is read soon, into the L2 cache.

        L1 can wait for few lines at a time: prefetched to it, one row's weights came from memory
        at 10 to 14 GB/s, as without prefetching; to L2 at 19 to 25, where this machine reads 30
        (medians, 80 matrices of 3072 x 1024).
        """
        reads, second_level, data = I32(0), I32(2), I32(1)
        self.call("llvm.prefetch.p0", VOID, place, reads, second_level, data)

    def clear(self, place: Value, num_bytes: Value) -> None:
        """Write zeros to memory."""
        self.call("llvm.memset.p0.i64", VOID, place, I8(0), num_bytes, I1(0))

    def write(self, value: Value, place: Value, align: int | None = None) -> None:
        """Store a value at an address."""
        self.at.store(value, place, align=align)

    def place(self, base: Value, offset: int | Value, size: int) -> Value:
        """Return the address of element ``offset`` of ``size`` bytes each."""
        return self.at.gep(base, [self.mul(offset, size)], source_etype=I8)

    @contextmanager
    def loop(self, start: int | Value, stop: int | Value, step: int | Value = 1) -> Iterator[Value]:
        """Repeat a block for start, start + step, ... below stop."""
        before = self.at.block
        start, stop, step = map(self.index, (start, stop, step))
        head = self.at.append_basic_block("loop")
        body, after = self.at.append_basic_block("body"), self.at.append_basic_block("after")
        self.at.branch(head)
        self.at.position_at_end(head)
        now = self.at.phi(I64)
        now.add_incoming(start, before)
        self.at.cbranch(self.less(now, stop), body, after)
        self.at.position_at_end(body)
        yield now
        now.add_incoming(self.at.add(now, step), self.at.block)
        self.at.branch(head)
        self.at.position_at_end(after)

    @contextmanager
    def while_(self) -> Iterator[Any]:
        """Loop; yields a function that leaves the loop unless its argument is true."""
        head, after = self.at.append_basic_block("while"), self.at.append_basic_block("after")
        self.at.branch(head)
        self.at.position_at_end(head)

        def unless(going: Value) -> None:
            body = self.at.append_basic_block("body")
            self.at.cbranch(going, body, after)
            self.at.position_at_end(body)

        yield unless
        self.at.branch(head)
        self.at.position_at_end(after)

    def call(self, name: str, returns: ir.Type, *arguments: Value) -> Value:
        """Call a function by name: of this module, an LLVM intrinsic, or of the C library."""
        found = self.module.globals.get(name)
        if found is None:
            kinds = [argument.type for argument in arguments]
            found = ir.Function(self.module, ir.FunctionType(returns, kinds), name)
        return self.at.call(found, arguments)

    def splat(self, value: Value | float) -> Value:
        """Return a float32 vector with a number in all lanes."""
        if isinstance(value, float):
            rounded = struct.unpack("f", struct.pack("f", value))[0]
            return ir.Constant(VECTOR, [rounded] * LANES)
        return self.spread(value, LANES)

    def spread(self, value: Value, lanes: int) -> Value:
        """Return a vector with a value of any type in all lanes."""
        kind = ir.VectorType(value.type, lanes)
        single = self.at.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
        return self.shuffle(single, single, [0] * lanes)

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Return the chosen lanes of a followed by b (LLVM's shufflevector)."""
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
        return self.at.shuffle_vector(a, b, mask)

    def first_lanes(self, count: Value, lanes: int) -> Value:
        """Return a mask of the first ``count`` lanes."""
        wide = ir.VectorType(I64, lanes)
        index = ir.Constant(wide, list(range(lanes)))
        return self.at.icmp_unsigned("<", index, self.spread(count, lanes))

    def halves(self, vector: Value, join: Callable[[Value, Value], Value]) -> Value:
        """Return the reduction of a vector's lanes, by halves, in every lane."""
        distance = LANES // 2
        while distance:
            other = self.shuffle(vector, vector, [i ^ distance for i in range(LANES)])
            vector, distance = join(vector, other), distance // 2
        return vector

    def exp(self, x: Value) -> Value:
        """Return e ** x of float32 numbers that are at most 0, to 2 units in the last place.

        x = n log 2 + r, and e ** r is a polynomial (Cephes); below -87 it is 0.
        """
        low = self.at.fcmp_ordered("<", x, self.splat(-87.0))
        x = self.at.select(low, self.splat(-87.0), x)
        n = self.call(
            f"llvm.roundeven.v{LANES}f32", VECTOR, self.at.fmul(x, self.splat(1.4426950408889634))
        )
        r = self.fma(n, self.splat(-0.693359375), x)
        r = self.fma(n, self.splat(2.12194440e-4), r)
        y = self.splat(1.9875691500e-4)
        for c in (
            1.3981999507e-3,
            8.3334519073e-3,
            4.1665795894e-2,
            1.6666665459e-1,
            0.5,
            1.0,
            1.0,
        ):
            y = self.fma(y, r, self.splat(c))
        wide = ir.VectorType(I32, LANES)
        bits = self.at.shl(self.at.fptosi(n, wide), ir.Constant(wide, [23] * LANES))
        found = self.at.bitcast(self.at.add(self.at.bitcast(y, wide), bits), VECTOR)
        found = self.at.select(low, ir.Constant(VECTOR, None), found)
        return self.at.select(self.at.fcmp_unordered("uno", x, x), x, found)  # NaN stays NaN

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c, rounded once."""
        kind = f"v{LANES}f32" if c.type == VECTOR else "f32"
        return self.call(f"llvm.fma.{kind}", c.type, a, b, c)

    def sums(self, vectors: Sequence[Value]) -> Value:
        """Return the sums of the lanes of up to LANES vectors: lane i is the sum of vector i.

        Each is added up by halves, in an order that does not depend on the other vectors.
        """
        level = list(vectors)
        level += [ir.Constant(VECTOR, ir.Undefined)] * (LANES - len(level))
        half = LANES // 2
        while len(level) > 1:  # of two vectors one is made, with the sums of their groups' halves
            low = [i for i in range(2 * LANES) if i // half % 2 == 0]
            high = [i for i in range(2 * LANES) if i // half % 2 == 1]
            level = [
                self.at.fadd(self.shuffle(a, b, low), self.shuffle(a, b, high))
                for a, b in zip(level[::2], level[1::2], strict=True)
            ]
            half //= 2
        return level[0]

    def transpose(self, rows: Sequence[Value], *, ascending: bool = False) -> list[Value]:
        """Return the columns of a square of vectors.

        Blocks beside the diagonal are swapped, of every size; the smallest first if ``ascending``.
        """
        rows, count = list(rows), len(rows)
        distances = [1 << level for level in range(count.bit_length() - 1)]
        for distance in distances if ascending else reversed(distances):
            upper = [j if not j & distance else count + j - distance for j in range(count)]
            lower = [j + distance if not j & distance else count + j for j in range(count)]
            for i in range(count):
                if not i & distance:
                    a, b = rows[i], rows[i + distance]
                    rows[i], rows[i + distance] = (
                        self.shuffle(a, b, upper),
                        self.shuffle(a, b, lower),
                    )
        return rows
