"""Loads and stores of float32, bfloat16 and float16, loads of int8; kernels compute in float32."""

from llvmlite import ir

from specjax.kernels.ir import F16, F32, I16, I32, LANES, VECTOR, VOID, Value, Writer

SIZES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "uint16": 2,
    "int8": 1,
}  # uint16: bfloat16's bits
STORED = {"float32": F32, "bfloat16": I16, "float16": F16, "uint16": I16, "int8": ir.IntType(8)}


def load(to: Writer, place: Value, dtype: str, lanes: int, mask: Value | None) -> Value:
    """Load numbers in their dtype; with a mask, zeros where it is false."""
    kind = ir.VectorType(STORED[dtype], lanes)
    if mask is None:
        return to.read(kind, place, align=1)
    name = f"llvm.masked.load.v{lanes}{kind.element.intrinsic_name}.p0"
    return to.call(name, kind, place, I32(1), mask, ir.Constant(kind, None))


def widen(to: Writer, stored: Value, dtype: str) -> Value:
    """Convert a vector of numbers from their dtype to float32, exactly."""
    if dtype == "float16":
        return to.at.fpext(stored, VECTOR)
    if dtype in ("bfloat16", "uint16"):  # the upper half of a float32
        wide = ir.VectorType(I32, LANES)
        bits = to.at.shl(to.at.zext(stored, wide), ir.Constant(wide, [16] * LANES))
        return to.at.bitcast(bits, VECTOR)
    if dtype == "int8":
        return to.at.sitofp(to.at.sext(stored, ir.VectorType(I32, LANES)), VECTOR)
    return stored


def narrow(to: Writer, wide: Value, dtype: str) -> Value:
    """Round float32 numbers to a dtype: to nearest, ties to even."""
    lanes = wide.type.count
    if dtype == "float16":
        return to.at.fptrunc(wide, ir.VectorType(F16, lanes))
    if dtype in ("bfloat16", "uint16"):
        kind = ir.VectorType(I32, lanes)
        half, one, shift, nan = (
            ir.Constant(kind, [number] * lanes) for number in (0x7FFF, 1, 16, 0x7FC0)
        )
        bits = to.at.bitcast(wide, kind)
        odd = to.at.and_(to.at.lshr(bits, shift), one)
        upper = to.at.lshr(to.at.add(to.at.add(bits, half), odd), shift)
        upper = to.at.select(to.at.fcmp_unordered("uno", wide, wide), nan, upper)
        return to.at.trunc(upper, ir.VectorType(I16, lanes))
    return wide


def read(to: Writer, place: Value, dtype: str, mask: Value | None) -> Value:
    """Load a vector of numbers as float32; with a mask, zeros where it is false."""
    return widen(to, load(to, place, dtype, LANES, mask), dtype)


def store(to: Writer, wide: Value, place: Value, dtype: str, mask: Value | None) -> None:
    """Round a vector of numbers to a dtype and store them; with a mask, those where it is true."""
    numbers, size = narrow(to, wide, dtype), SIZES[dtype]
    if mask is None:
        to.write(numbers, place, align=size)
    else:
        name = f"llvm.masked.store.v{LANES}{numbers.type.element.intrinsic_name}.p0"
        to.call(name, VOID, numbers, place, I32(size), mask)
