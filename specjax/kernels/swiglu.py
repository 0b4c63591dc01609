"""Gated activations: SwiGLU, GELU-gated, and gpt-oss's clipped SwiGLU.

Each is g * logistic(z(g)) * u of the first half g of a row and the second, u.
"""

import functools
import math

import jax
from jaxtyping import Array, Float
from llvmlite import ir

from specjax.kernels.call import CountTasks, argument, dim, register, result
from specjax.kernels.ir import I64, LANES, POINTER, VECTOR, VOID, Value, Writer
from specjax.kernels.stored import SIZES, read, store

TASK = 1 << 14  # results per task, at least
CLIP, CLIPPED_SLOPE = 7.0, 1.702  # of gpt-oss: swiglu_limit, and the logistic function's slope


def swiglu(gate_up: Float[Array, "N F2"]) -> Float[Array, "N F"]:
    """Return SwiGLU, computed in float32, in the dtype of ``gate_up``."""
    return _gated("swiglu", gate_up)


def geglu(gate_up: Float[Array, "N F2"]) -> Float[Array, "N F"]:
    """Return GELU of g, by tanh, times u; computed in float32, in the dtype of ``gate_up``."""
    return _gated("geglu", gate_up)


def clipped_swiglu(gate_up: Float[Array, "N F2"]) -> Float[Array, "N F"]:
    """Return gpt-oss's SwiGLU: g * logistic(1.702 g) * (u + 1), g at most 7, u within -7 .. 7.

    Computed in float32, in the dtype of ``gate_up``.
    """
    return _gated("clipped_swiglu", gate_up)


def _gated(kind: str, gate_up: Float[Array, "N F2"]) -> Float[Array, "N F"]:
    dtype = str(gate_up.dtype)
    name = register(f"specjax_{kind}_{dtype}", functools.partial(write_gated, kind, dtype))
    shape = jax.ShapeDtypeStruct((gate_up.shape[0], gate_up.shape[1] // 2), gate_up.dtype)
    return jax.ffi.ffi_call(name, shape)(gate_up)


def logistic_argument(to: Writer, kind: str, gate: Value, up: Value) -> tuple[Value, Value, Value]:
    """Return g and u, and z."""
    if kind == "geglu":  # (1 + tanh y) / 2 is the logistic function of 2 y
        cubic = to.at.fmul(to.at.fmul(gate, gate), gate)
        inner = to.fma(to.splat(0.044715), cubic, gate)
        return gate, up, to.at.fmul(to.splat(2 * math.sqrt(2 / math.pi)), inner)
    if kind == "clipped_swiglu":
        high, low = to.splat(CLIP), to.splat(-CLIP)
        gate = to.at.select(to.at.fcmp_ordered(">", gate, high), high, gate)
        up = to.at.select(to.at.fcmp_ordered(">", up, high), high, up)
        up = to.at.select(to.at.fcmp_ordered("<", up, low), low, up)
        slope = to.at.fmul(to.splat(CLIPPED_SLOPE), gate)
        return gate, to.at.fadd(up, to.splat(1.0)), slope
    return gate, up, gate


def write_gated(kind: str, dtype: str, module: ir.Module) -> CountTasks:
    """Write the kernel's body; a task is a range of rows."""

    def count_tasks(to: Writer, frame: Value) -> Value:
        rows, both = dim(to, frame, 0, 0), dim(to, frame, 0, 1)
        return to.most(to.least(to.div(to.mul(rows, both), 2 * TASK), rows), 1)

    to = Writer(module, "body", VOID, [POINTER, I64])
    frame, task = to.function.args
    rows, both = dim(to, frame, 0, 0), dim(to, frame, 0, 1)
    num_tasks, size = count_tasks(to, frame), to.div(both, 2)
    whole = to.mul(to.div(size, LANES), LANES)
    first = to.div(to.mul(rows, task), num_tasks)
    last = to.div(to.mul(rows, to.add(task, 1)), num_tasks)
    zero, one = ir.Constant(VECTOR, None), to.splat(1.0)
    with to.loop(first, last) as row:
        gates = to.place(argument(to, frame, 0), to.mul(row, both), SIZES[dtype])
        ups = to.place(gates, size, SIZES[dtype])
        out = to.place(result(to, frame), to.mul(row, size), SIZES[dtype])

        def step(i: Value, mask: Value | None, gates=gates, ups=ups, out=out) -> None:
            gate = read(to, to.place(gates, i, SIZES[dtype]), dtype, mask)
            up = read(to, to.place(ups, i, SIZES[dtype]), dtype, mask)
            gate, up, z = logistic_argument(to, kind, gate, up)
            # by an exponential that cannot overflow
            below = to.at.fcmp_ordered("<", z, zero)
            power = to.exp(to.at.select(below, z, to.at.fneg(z)))
            above = to.at.select(below, power, one)
            share = to.at.fdiv(above, to.at.fadd(one, power))
            gated = to.at.fmul(to.at.fmul(gate, share), up)
            store(to, gated, to.place(out, i, SIZES[dtype]), dtype, mask)

        with to.loop(0, whole, LANES) as i:
            step(i, None)
        with to.at.if_then(to.less(whole, size)):
            step(whole, to.first_lanes(to.sub(size, whole), LANES))
    to.at.ret_void()
    return count_tasks
