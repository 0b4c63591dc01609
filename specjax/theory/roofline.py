"""The time of a forward pass: bytes over bandwidth or operations over compute.

Williams, Waterman & Patterson 2009, applied to decoding: B rows of m tokens each read the
weights once and every row's keys and values once. Units: bytes, FLOP, s, bytes/s, FLOP/s.
"""

from typing import NamedTuple

import numpy as np

from specjax.theory.arrays import Real, Value, arrays, library_of, require, require_costs
from specjax.theory.lengths import tokens_per_step
from specjax.theory.moe import moe_active_experts


class ModelCost(NamedTuple):
    """The sizes of a model that determine a forward pass's bytes and operations.

    ``model_cost`` computes them from a config.json. Of ``num_params``, ``expert_params`` are in
    routed experts, of which each token takes ``experts_per_token``.
    """

    name: str
    num_params: float  # read by a pass over many tokens
    bytes_per_param: float
    kv_bytes: float  # per token of context, see ``kv_bytes_per_token``
    context_flops: float = 0.0  # attention's operations per token and token of context
    expert_params: float = 0.0
    num_experts: int = 1
    experts_per_token: int = 1

    @property
    def active_params(self) -> float:
        """The parameters that one token is multiplied with."""
        share = self.experts_per_token / self.num_experts
        return self.num_params - self.expert_params * (1.0 - share)


class Hardware(NamedTuple):
    """Peak numbers of one device; programs reach less."""

    name: str
    bandwidth: float  # bytes/s
    flops: float  # FLOP/s
    assumption: str  # where the numbers come from
    memory: float = float("inf")  # bytes


H200 = Hardware(
    "NVIDIA H200",
    4.8e12,
    989e12,
    "assumed: NVIDIA's data sheet, HBM3e, dense bf16; real runs reach less",
    141e9,
)
ASCEND_910B = Hardware(
    "Ascend 910B",
    1.6e12,
    376e12,
    "assumed: press figures, HBM2e, dense fp16; variants differ",
    64e9,
)
NVIDIA = "assumed: NVIDIA's data sheet, dense bf16; real runs reach less"
AMD = "assumed: AMD's data sheet, dense bf16; real runs reach less"
GOOGLE = "assumed: docs.cloud.google.com/tpu/docs, bf16; real runs reach less"
HARDWARE = {
    "H200": H200,
    "H100": Hardware("NVIDIA H100 SXM", 3.35e12, 989e12, NVIDIA, 80e9),
    "B200": Hardware("NVIDIA B200", 8.0e12, 2250e12, NVIDIA, 180e9),
    "H20": Hardware(
        "NVIDIA H20",
        4.0e12,
        148e12,
        "assumed: press figures, dense bf16; real runs reach less",
        96e9,
    ),
    "MI300X": Hardware("AMD MI300X", 5.3e12, 1307e12, AMD, 192e9),
    "TPU-v5e": Hardware("TPU v5e", 819e9, 197e12, GOOGLE, 16e9),
    "TPU-v6e": Hardware("TPU v6e", 1638e9, 918e12, GOOGLE, 32e9),
    "TPU-v7": Hardware("TPU7x (Ironwood)", 7380e9, 2307e12, GOOGLE, 192 * 2**30),
    "M4-Max": Hardware(
        "Apple M4 Max, 40 GPU cores",
        546e9,
        34e12,
        "assumed: apple.com for the bandwidth, gpuhunter.io for fp16; real runs reach less",
        128e9,
    ),
    "910B": ASCEND_910B,
    "910C": Hardware(
        "Ascend 910C", 3.2e12, 780e12, "assumed: press figures, dense bf16, two dies", 128e9
    ),
    "Xeon-2": Hardware(
        "2 cores of an Intel Xeon with AMX",
        29.2e9,
        1376e9,
        "measured: specjax bench hardware, bf16, commit 2380635, 2026-11-25",
        25e9,
    ),
}


def kv_bytes_per_token(
    num_layers: Real, num_kv_heads: Real, head_dim: Real, bytes_per_value: Real = 2
) -> Value:
    """Return 2 L H d b: bytes of keys and values that one token of context takes.

    By counting bytes.
    Raises ValueError for a negative size.
    """
    named = {"num_layers": num_layers, "num_kv_heads": num_kv_heads}
    require_costs(**named, head_dim=head_dim, bytes_per_value=bytes_per_value)
    _, layers, heads, dim, width = arrays(num_layers, num_kv_heads, head_dim, bytes_per_value)
    return (2.0 * layers * heads * dim * width)[()]


# Layers and heads are those of their config.json; attention takes 4 L H d operations.
QWEN3_32B = ModelCost(
    "Qwen3-32B", 32.8e9, 2.0, float(kv_bytes_per_token(64, 8, 128)), 4.0 * 64 * 64 * 128
)
QWEN3_0_6B = ModelCost(
    "Qwen3-0.6B", 0.6e9, 2.0, float(kv_bytes_per_token(28, 8, 128)), 4.0 * 28 * 16 * 128
)


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

    max(bytes / BW, operations / F) + floor, bytes = weights + B ctx kv, operations = B m (2 N + ctx
    ``model.context_flops``); the roofline of Williams et al. 2009. Of routed experts a pass reads
    those that any of its tokens takes (MoESD), and N is what one token is multiplied with.
    ``overlap="sum"`` adds the two instead, which is what a pass without overlap takes.
    Broadcasts. Raises ValueError for negative arguments or another ``overlap``.
    """
    require_costs(B=B, m=m, ctx=ctx, host_floor=host_floor)
    if overlap not in ("max", "sum"):
        raise ValueError(f"overlap must be 'max' or 'sum', got {overlap!r}")
    xp, B, m, ctx, floor = arrays(B, m, ctx, host_floor)
    weights = model.num_params
    if model.expert_params:
        awake = moe_active_experts(model.num_experts, model.experts_per_token, B * m)
        weights = weights - model.expert_params * (1.0 - awake / model.num_experts)
    moved = (weights * model.bytes_per_param + B * ctx * model.kv_bytes) / hw.bandwidth
    computed = (2.0 * model.active_params + ctx * model.context_flops) * B * m / hw.flops
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

    Leviathan et al. 2023 (arXiv 2211.17192), Thm 3.8, with the costs of ``decode_time_roofline``.
    ``draft`` None: a free draft; ``draft_ctx``: what the draft attends to, if not ``ctx``. Falls
    with B once B (K + 1) tokens are bound by compute. Raises ValueError as both do.
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

    The ridge of the roofline (Williams et al. 2009), solved for the batch.
    B* = (weights / BW) / (2 N m / F - ctx kv / BW), with attention's operations in 2 N; infinite
    where reading a row's context takes longer than computing on it, so that a larger batch never
    gets there (MagicDec's regime). Raises ValueError for negative arguments or routed experts,
    whose bytes depend on the batch.
    """
    require_costs(m=m, ctx=ctx)
    if model.expert_params:
        raise ValueError(f"{model.name} has routed experts: critical_batch is of dense models")
    xp, m, ctx = arrays(m, ctx)
    weights = model.num_params * model.bytes_per_param / hw.bandwidth
    operations = (2.0 * model.num_params + ctx * model.context_flops) * m
    row = operations / hw.flops - ctx * model.kv_bytes / hw.bandwidth
    return xp.where(row > 0, weights / xp.where(row > 0, row, 1.0), xp.inf)[()]


def long_context_speedup(
    B: Real, alpha: Real, K: Real, ctx: Real, budget: Real, model: ModelCost, hw: Hardware
) -> Value:
    """Return the speedup of self-speculation with a sparse cache of ``budget`` tokens.

    MagicDec (Sadhukhan et al. 2024, arXiv 2408.11049): the draft is the target, but reads
    ``budget`` instead of ``ctx`` tokens of context. Grows with B and ctx, unlike short-context
    speculation. Raises ValueError for negative arguments.
    """
    require_costs(budget=budget)
    xp = library_of(ctx, budget)
    reads = xp.minimum(xp.asarray(ctx), xp.asarray(budget))
    return speedup_vs_batch(B, alpha, K, ctx, model, hw, draft=model, draft_ctx=reads)


def devices_needed(B: Real, ctx: Real, model: ModelCost, hw: Hardware) -> Value:
    """Return how many devices hold the weights and the caches of B rows of ``ctx`` tokens.

    By counting bytes.
    N devices read and compute N times as fast (without the cost of communication), so ratios of
    times on a roofline are those of one. Broadcasts. Raises ValueError for negative arguments.

    >>> int(devices_needed(64, 8192, QWEN3_32B, H200))
    2
    """
    require_costs(B=B, ctx=ctx)
    xp, B, ctx = arrays(B, ctx)
    bytes_held = model.num_params * model.bytes_per_param + B * ctx * model.kv_bytes
    return xp.maximum(xp.ceil(bytes_held / hw.memory), 1.0)[()]


def knee(model: ModelCost, hw: Hardware) -> float:
    """Return B m, the tokens per pass at which compute takes as long as reading the weights."""
    require("bytes_per_param", model.bytes_per_param, np.finfo(float).tiny)
    return model.bytes_per_param * hw.flops / (2.0 * hw.bandwidth)
