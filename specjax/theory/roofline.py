"""How long a forward pass takes: bytes over bandwidth or operations over compute.

Williams, Waterman & Patterson 2009, applied to decoding: B rows of m tokens each read the
weights once and every row's keys and values once. Units: bytes, FLOP, s, bytes/s, FLOP/s.
"""

from typing import NamedTuple

import numpy as np

from specjax.theory.arrays import Real, Value, arrays, library_of, require, require_costs
from specjax.theory.lengths import tokens_per_step


class ModelCost(NamedTuple):
    """What a forward pass of a dense model reads and computes."""

    name: str
    num_params: float
    bytes_per_param: float
    kv_bytes: float  # per token of context, see ``kv_bytes_per_token``


class Hardware(NamedTuple):
    """Peak numbers; what a program reaches of them is an assumption."""

    name: str
    bandwidth: float  # bytes/s
    flops: float  # FLOP/s
    assumption: str  # where the numbers come from


H200 = Hardware(
    "NVIDIA H200", 4.8e12, 989e12, "assumed: data sheet, HBM3e, dense bf16; real runs reach less"
)
ASCEND_910B = Hardware(
    "Ascend 910B", 1.6e12, 376e12, "assumed: press figures, HBM2e, dense fp16; variants differ"
)


def kv_bytes_per_token(
    num_layers: Real, num_kv_heads: Real, head_dim: Real, bytes_per_value: Real = 2
) -> Value:
    """Return 2 L H d b: bytes of keys and values that one token of context takes.

    Raises ValueError for a negative size.
    """
    named = {"num_layers": num_layers, "num_kv_heads": num_kv_heads}
    require_costs(**named, head_dim=head_dim, bytes_per_value=bytes_per_value)
    _, layers, heads, dim, width = arrays(num_layers, num_kv_heads, head_dim, bytes_per_value)
    return (2.0 * layers * heads * dim * width)[()]


QWEN3_32B = ModelCost("Qwen3-32B", 32.8e9, 2.0, float(kv_bytes_per_token(64, 8, 128)))
QWEN3_0_6B = ModelCost("Qwen3-0.6B", 0.6e9, 2.0, float(kv_bytes_per_token(28, 8, 128)))


def decode_time_roofline(
    B: Real,
    m: Real,
    ctx: Real,
    model: ModelCost,
    hw: Hardware,
    overlap: str = "max",
    host_floor: Real = 0.0,
) -> Value:
    """Return the seconds of a forward pass over B rows of m tokens with ``ctx`` tokens of context.

    max(bytes / BW, 2 N B m / F) + floor, bytes = weights + B ctx kv; the roofline of Williams et
    al. 2009. ``overlap="sum"`` adds the two instead, which is what a pass without overlap takes.
    Operations of attention itself are left out. Broadcasts. Raises ValueError for negative
    arguments or another ``overlap``.
    """
    require_costs(B=B, m=m, ctx=ctx, host_floor=host_floor)
    if overlap not in ("max", "sum"):
        raise ValueError(f"overlap must be 'max' or 'sum', got {overlap!r}")
    xp, B, m, ctx, floor = arrays(B, m, ctx, host_floor)
    moved = (model.num_params * model.bytes_per_param + B * ctx * model.kv_bytes) / hw.bandwidth
    computed = 2.0 * model.num_params * B * m / hw.flops
    return ((xp.maximum(moved, computed) if overlap == "max" else moved + computed) + floor)[()]


def speedup_vs_batch(
    B: Real,
    alpha: Real,
    K: Real,
    ctx: Real,
    model: ModelCost,
    hw: Hardware,
    draft: ModelCost | None = None,
    draft_ctx: Real | None = None,
    overlap: str = "max",
    host_floor: Real = 0.0,
) -> Value:
    """Return G T(B, 1) / (K T_draft(B, 1) + T(B, K + 1)), the speedup of a batch on a roofline.

    Leviathan et al. 2023, Thm 3.8, with the costs of ``decode_time_roofline``. ``draft`` None: a
    free draft; ``draft_ctx``: what the draft attends to, if not ``ctx``. Falls with B once
    B (K + 1) tokens are bound by compute. Raises ValueError as both do.
    """
    tokens = tokens_per_step(alpha, K)
    _, B, K, ctx, tokens = arrays(B, K, ctx, tokens)

    def time(m, context, which):
        return decode_time_roofline(B, m, context, which, hw, overlap, host_floor)

    drafting = 0.0
    if draft is not None:
        drafting = K * time(1, ctx if draft_ctx is None else draft_ctx, draft)
    return tokens * time(1, ctx, model) / (drafting + time(K + 1.0, ctx, model))


def critical_batch(m: Real, ctx: Real, model: ModelCost, hw: Hardware) -> Value:
    """Return the batch size from which a pass over m tokens per row is bound by compute.

    B* = (weights / BW) / (2 N m / F - ctx kv / BW); infinite where reading a row's context takes
    longer than computing on it, so that a larger batch never gets there (MagicDec's regime).
    Raises ValueError for negative arguments.
    """
    require_costs(m=m, ctx=ctx)
    xp, m, ctx = arrays(m, ctx)
    weights = model.num_params * model.bytes_per_param / hw.bandwidth
    row = 2.0 * model.num_params * m / hw.flops - ctx * model.kv_bytes / hw.bandwidth
    return xp.where(row > 0, weights / xp.where(row > 0, row, 1.0), xp.inf)[()]


def long_context_speedup(
    B: Real, alpha: Real, K: Real, ctx: Real, budget: Real, model: ModelCost, hw: Hardware
) -> Value:
    """Return the speedup of self-speculation with a sparse cache of ``budget`` tokens.

    MagicDec (Sadhukhan et al. 2024): the draft is the target, but reads ``budget`` instead of
    ``ctx`` tokens of context. Grows with B and ctx, unlike short-context speculation.
    Raises ValueError for negative arguments.
    """
    require_costs(budget=budget)
    xp = library_of(ctx, budget)
    reads = xp.minimum(xp.asarray(ctx), xp.asarray(budget))
    return speedup_vs_batch(B, alpha, K, ctx, model, hw, draft=model, draft_ctx=reads)


def knee(model: ModelCost, hw: Hardware) -> float:
    """Return B m, the tokens per pass at which compute takes as long as reading the weights."""
    require("bytes_per_param", model.bytes_per_param, np.finfo(float).tiny)
    return model.bytes_per_param * hw.flops / (2.0 * hw.bandwidth)
