"""PyTorch's kernels for the fusible ops of ``specjax.core.ops``; Ascend's are in ``ascend``.

A plan maps an op's name to a ``FusedKernel``.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import fx
from torch.nn import functional

from npu_bridge.rules import Equation, Operand, aten, call, cast, out, to_dtype

SKINNY_ROWS = 32

Fused = tuple[Sequence[Operand], str | None]  # results, and the kernel's name for the report


class FusedKernel(Protocol):
    """Lower a fusible op to a kernel."""

    def __call__(
        self,
        lowering: Any,
        scope: Any,
        eqn: Equation,
        operands: Sequence[Operand],
        mine: Sequence[bool],
        /,
    ) -> Fused:
        """Return the results and the kernel's name.

        Args:
            lowering: the ``lower.Lowering`` at work.
            scope: the ``lower.Scope`` of the equation, in which later equations can be looked up.
            eqn: the op.
            operands: of the op.
            mine: which operands may be overwritten.

        Raises:
            Unfit: the kernel does not take these operands; then the op is decomposed.
        """
        ...


def identity(x: Any) -> Any:
    """Return a key by which a tensor or proxy is the same one."""
    return x.node if isinstance(x, fx.Proxy) else id(x)


class Unfit(Exception):
    """A kernel does not take these operands; ``why`` is for the report, None: not reported."""

    def __init__(self, why: str | None):
        super().__init__(why)
        self.why = why


def literal(eqn: Equation, primitive: str) -> float:
    """Return the one constant that an op's body passes to a primitive, such as an epsilon."""
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


def linear(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower ``ops.linear`` to ``functional.linear``."""
    return (call(functional.linear, *operands),), "linear"


def skinny_linear(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower ``ops.linear`` to ``weight @ columns`` for few rows in float32, else to ``linear``.

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


def rms_norm(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower ``ops.rms_norm`` to ``functional.rms_norm``."""
    x, weight = operands
    size, epsilon = list(eqn.invars[1].aval.shape), literal(eqn, "scale_rows")
    return (call(functional.rms_norm, x, size, weight, epsilon),), "rms_norm"


def rotate(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower ``ops.rotate`` (RoPE) to x cos + (x2, x1) (-sin, sin): three calls."""
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


def swiglu(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower ``ops.swiglu`` to ``functional.silu`` and a product."""
    size = out(eqn).shape[-1]
    halves = operands
    if len(operands) == 1:
        halves = [call(torch.narrow, operands[0], -1, start, size) for start in (0, size)]
    gate, up = halves
    return (call(torch.mul, call(functional.silu, gate), up),), "silu"


def attention(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower ``ops.attention`` to ``functional.scaled_dot_product_attention``."""
    query, keys, values, mask = operands
    heads, shared = eqn.invars[0].aval.shape[2], eqn.invars[1].aval.shape[1]
    query = call(torch.transpose, query, 1, 2)
    mask = call(torch.unsqueeze, mask, 1)
    options = {"attn_mask": mask, "enable_gqa": heads != shared}
    made = call(functional.scaled_dot_product_attention, query, keys, values, **options)
    return (call(torch.transpose, made, 1, 2),), "scaled_dot_product_attention"


def write_kv(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower ``ops.write_kv`` to an in-place ``index_put_``; the caller has checked all bounds.

    ``mine`` are the operands that nothing else reads: only such a cache is overwritten.
    """
    leaf, new, slots = operands
    lowering.overwrite(leaf, mine[0])
    batch = eqn.invars[0].aval.shape[0]
    rows = torch.arange(batch, dtype=torch.int32)[:, None]
    view = call(torch.permute, leaf, [0, 2, 1, 3])
    new = cast(new, to_dtype(eqn.invars[0].aval.dtype))
    call(aten.index_put_.default, view, [rows, slots], new)
    return (leaf,), "index_put_ in place"


TORCH: dict[str, FusedKernel] = {
    "linear": skinny_linear,
    "rms_norm": rms_norm,
    "rotate": rotate,
    "swiglu": swiglu,
    "attention": attention,
    "write_kv": write_kv,
}
