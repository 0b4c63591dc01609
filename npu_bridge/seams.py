"""Fused kernels for the seams of ``specjax.ops``: PyTorch's own here, Ascend's in ``ascend``.

A plan maps a seam's name to a function of (lowering, scope, equation, operands, mine), ``mine``
saying which operands may be overwritten. It returns the results and the kernel's name, or
raises Unfit with the reason: then the decomposition is lowered.
"""

import math
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from npu_bridge.rules import aten, call, cast, out, to_dtype

SKINNY_ROWS = 32


def identity(x: Any):
    """Return what tells a value from others."""
    return x.node if isinstance(x, fx.Proxy) else id(x)


class Unfit(Exception):
    """A kernel does not take these operands; ``why`` is for the report, None: not worth a word."""

    def __init__(self, why: str | None):
        super().__init__(why)
        self.why = why


def literal(eqn, primitive: str) -> float:
    """Return the one constant that a seam's body gives to a primitive, such as an epsilon."""
    found = [
        float(operand.val)
        for inner in eqn.params["jaxpr"].eqns
        if inner.primitive.name == primitive
        for operand in inner.invars
        if hasattr(operand, "val")
    ]
    if len(found) != 1:
        raise Unfit(f"its body has {len(found)} constants in {primitive!r}, not one")
    return found[0]


def linear(lowering, scope, eqn, operands, mine):
    """Multiply by a stored matrix."""
    return (call(functional.linear, *operands),), "linear"


def skinny_linear(lowering, scope, eqn, operands, mine):
    """Multiply by a stored matrix, from its side where a CPU's rows are few.

    24 products of 768 x 2048 with 4 rows in float32 take 4.5 ms as ``weight @ columns`` and
    15.1 ms as ``linear`` (one core and more were busy elsewhere); in bfloat16 6.4 and 4.5.
    """
    x, weight, *bias = operands
    *lead, size = eqn.invars[0].aval.shape
    rows, width = math.prod(lead), eqn.invars[1].aval.shape[0]
    if to_dtype(out(eqn).dtype) != torch.float32 or rows > SKINNY_ROWS:
        return linear(lowering, scope, eqn, operands, mine)
    columns = call(torch.t, call(torch.reshape, x, [rows, size]))
    y = call(torch.reshape, call(torch.t, call(torch.mm, weight, columns)), [*lead, width])
    return (call(torch.add, y, bias[0]) if bias else y,), "weight @ columns"


def rms_norm(lowering, scope, eqn, operands, mine):
    """Normalise the last axis."""
    x, weight = operands
    size, epsilon = list(eqn.invars[1].aval.shape), literal(eqn, "scale_rows")
    return (call(functional.rms_norm, x, size, weight, epsilon),), "rms_norm"


def rotate(lowering, scope, eqn, operands, mine):
    """Rotate: with the halves swapped, x cos + (x2, x1) (-sin, sin) is three calls."""
    x, cos, sin = operands
    size, dtype = eqn.invars[0].aval.shape[-1], to_dtype(eqn.invars[0].aval.dtype)
    key = ("rotate", identity(cos), dtype)
    if key not in lowering.memo:
        pairs = ([cos, cos], [call(torch.neg, sin), sin])
        wide = [call(torch.unsqueeze, call(torch.cat, pair, -1), 2) for pair in pairs]
        lowering.memo[key] = [cast(one, dtype) for one in wide]
    cosine, sine = lowering.memo[key]
    swapped = call(torch.roll, x, size // 2, -1)
    return (call(torch.addcmul, call(torch.mul, x, cosine), swapped, sine),), "roll, addcmul"


def swiglu(lowering, scope, eqn, operands, mine):
    """Gate with SiLU."""
    gate, up = operands
    return (call(torch.mul, call(functional.silu, gate), up),), "silu"


def attention(lowering, scope, eqn, operands, mine):
    """Attend by PyTorch's own kernel."""
    query, keys, values, mask = operands
    heads, shared = eqn.invars[0].aval.shape[2], eqn.invars[1].aval.shape[1]
    query = call(torch.transpose, query, 1, 2)
    mask = call(torch.unsqueeze, mask, 1)
    options = {"attn_mask": mask, "enable_gqa": heads != shared}
    made = call(functional.scaled_dot_product_attention, query, keys, values, **options)
    return (call(torch.transpose, made, 1, 2),), "scaled_dot_product_attention"


def write_kv(lowering, scope, eqn, operands, mine):
    """Write nodes into their slots, in place; the caller has checked that they are in bounds."""
    leaf, new, slots = operands
    lowering.overwrite(leaf, mine[0])
    batch = eqn.invars[0].aval.shape[0]
    rows = torch.arange(batch, dtype=torch.int32)[:, None]
    view = call(torch.permute, leaf, [0, 2, 1, 3])
    new = cast(new, to_dtype(eqn.invars[0].aval.dtype))
    call(aten.index_put_.default, view, [rows, slots], new)
    return (leaf,), "index_put_ in place"


TORCH = {
    "linear": skinny_linear,
    "rms_norm": rms_norm,
    "rotate": rotate,
    "swiglu": swiglu,
    "attention": attention,
    "write_kv": write_kv,
}
