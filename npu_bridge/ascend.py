"""Ascend's fused kernels for the fusible ops, as torch_npu 2.13.0 registers them.

Guards check the requirements of a kernel's documentation; an op that fails one is decomposed.
There are two layouts of the cache, both [B, T, KH, d] in memory (``lower`` has them transposed):
"dense" attends over rows (BSND), "paged" reads the same bytes as blocks of 128 slots (TND
queries), as vllm-ascend does. Lengths are host lists. Nothing here has been executed on hardware.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from npu_bridge.rules import Equation, Operand, aten, call, cast, to_dtype
from npu_bridge.schemas import define
from npu_bridge.torch_kernels import Fused, FusedKernel, Unfit, identity, linear, literal

BLOCK = 128  # slots of a block of a paged cache
MASK = 2048  # the side of the causal mask of sparse_mode 3
HALF = (torch.float16, torch.bfloat16)
MOST_TOP_K = 1024


def npu(name: str) -> Any:
    """Return an operator of torch_npu: the real one if it is imported, else its snapshot."""
    define()
    return getattr(torch.ops.npu, name).default


def dtype_of(eqn: Equation, operand: int) -> torch.dtype:
    """Return an operand's dtype."""
    return to_dtype(eqn.invars[operand].aval.dtype)


def require(fits: bool, why: str) -> None:
    """Raise Unfit unless a guard holds."""
    if not fits:
        raise Unfit(why)


def rms_norm(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower ``ops.rms_norm`` to npu_rms_norm."""
    x, weight = operands
    pair = (dtype_of(eqn, 0), dtype_of(eqn, 1))
    require(pair[0] == pair[1] or pair[1] == torch.float32, f"dtypes {pair[0]} and {pair[1]}")
    both = call(npu("npu_rms_norm"), x, weight, epsilon=literal(eqn, "scale_rows"))
    return (call(operator.getitem, both, 0),), "npu_rms_norm"


def add(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower an addition and the RMSNorm of the sum to npu_add_rms_norm.

    The norm is looked up among the later equations; an addition without one is not fused.
    """
    total = eqn.outvars[0]
    for ahead in range(scope.position + 1, len(scope.eqns)):
        norm = scope.eqns[ahead]
        if norm.params.get("name") == "rms_norm" and norm.invars[0] is total:
            break
    else:
        raise Unfit(None)
    shapes = {v.aval.shape for v in eqn.invars}
    if len(shapes) > 1 or norm.invars[1] not in scope.env:
        raise Unfit(None)
    weight = scope.get(norm.invars[1]).device
    if len({dtype_of(eqn, 0), dtype_of(eqn, 1), dtype_of(norm, 1)}) > 1:
        raise Unfit(None)  # one dtype for all three; npu_rms_norm takes the pair
    three = call(npu("npu_add_rms_norm"), *operands, weight, epsilon=literal(norm, "scale_rows"))
    y, summed = (call(operator.getitem, three, i) for i in (0, 2))
    scope.done.add(ahead)
    scope.put(norm.outvars[0], y)
    return (summed,), "npu_add_rms_norm"


def rotate(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower ``ops.rotate`` to npu_rotary_mul, which takes cosines of the whole head size."""
    x, *angles = operands
    size, dtype = eqn.invars[0].aval.shape[-1], dtype_of(eqn, 0)
    require(size % 2 == 0 and size < 896, f"head_dim {size}: even and below 896 is asked for")
    wide = []
    for half in angles:
        key = ("wide", identity(half), dtype)
        if key not in lowering.memo:
            both = call(torch.cat, [half, half], -1)
            lowering.memo[key] = cast(call(torch.unsqueeze, both, 2), dtype)
        wide.append(lowering.memo[key])
    return (call(npu("npu_rotary_mul"), x, *wide, rotary_mode="half"),), "npu_rotary_mul"


def swiglu(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower ``ops.swiglu`` to npu_swiglu, which takes both halves in one tensor."""
    both = operands[0] if len(operands) == 1 else call(torch.cat, list(operands), -1)
    return (call(npu("npu_swiglu"), both, dim=-1),), "npu_swiglu"


def attention_mask(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Decompose ``attention_mask``, and record whether it is a chain's, for ``attention``."""
    lengths, visible = operands
    (made,) = lowering.run(eqn.params["jaxpr"].jaxpr, [], [scope.get(v) for v in eqn.invars], mine)
    nodes = eqn.outvars[0].aval.shape[1]
    if isinstance(visible, torch.Tensor) and isinstance(lengths, fx.Proxy):
        causal = torch.ones(nodes, nodes, dtype=torch.bool).tril()
        if visible.shape[1:] == causal.shape and bool((visible == causal).all()):
            lowering.causal[made.device.node] = (lengths, nodes)
    return (made.device,), None


def write_rows(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower ``ops.write_kv`` to npu_scatter_nd_update_, in place, for a dense cache."""
    leaf, new, slots = operands
    lowering.overwrite(leaf, mine[0])
    batch, heads, capacity, size = eqn.invars[0].aval.shape
    nodes = eqn.invars[1].aval.shape[1]
    rows = call(torch.reshape, physical(leaf), [batch * capacity, heads * size])
    index = call(torch.reshape, flat_slots(lowering, slots, batch, capacity), [batch * nodes, 1])
    new = cast(call(torch.reshape, new, [batch * nodes, heads * size]), dtype_of(eqn, 0))
    call(npu("npu_scatter_nd_update_"), rows, index, new)
    return (leaf,), "npu_scatter_nd_update_ in place"


def write_pages(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower a layer's two ``ops.write_kv`` to one npu_scatter_pa_kv_cache, for a paged cache."""
    keys, new, slots = operands
    batch, heads, capacity, size = eqn.invars[0].aval.shape
    nodes = eqn.invars[1].aval.shape[1]
    require(capacity % BLOCK == 0, f"capacity {capacity} is not a multiple of {BLOCK}")
    ahead = scope.position + 1
    other: Any = scope.eqns[ahead] if ahead < len(scope.eqns) else eqn
    both = other is not eqn and other.params.get("name") == "write_kv"
    require(both and other.invars[2] is eqn.invars[2], "no values are written with these keys")
    leaves = [keys, scope.get(other.invars[0]).device]
    lowering.overwrite(leaves[0], mine[0])
    lowering.overwrite(leaves[1], scope.mine(other)[0])
    blocks = [batch * capacity // BLOCK, BLOCK, heads, size]
    rows = [new, scope.get(other.invars[1]).device]
    rows = [
        cast(call(torch.reshape, row, [batch * nodes, heads, size]), dtype_of(eqn, 0))
        for row in rows
    ]
    caches = [call(torch.reshape, physical(leaf), blocks) for leaf in leaves]
    index = call(torch.reshape, flat_slots(lowering, slots, batch, capacity), [batch * nodes])
    call(npu("npu_scatter_pa_kv_cache"), *rows, *caches, index, cache_mode="Norm")
    scope.done.add(ahead)
    scope.put(other.outvars[0], leaves[1])
    return (keys,), "npu_scatter_pa_kv_cache in place (keys and values)"


def physical(leaf: Operand) -> Operand:
    """Return a cache leaf [B, KH, T, d] in its memory layout, [B, T, KH, d]."""
    return call(torch.permute, leaf, [0, 2, 1, 3])


def flat_slots(lowering: Any, slots: Operand, batch: int, capacity: int) -> Operand:
    """Return slots as indices of a flat cache: row b has b T ... b T + T - 1."""
    key = ("slots", identity(slots), capacity)
    if key not in lowering.memo:
        first = torch.arange(batch, dtype=torch.int32)[:, None] * capacity
        lowering.memo[key] = call(torch.add, slots, first)
    return lowering.memo[key]


def attention(
    paged: bool,
    lowering: Any,
    scope: Any,
    eqn: Equation,
    operands: Sequence[Operand],
    mine: Sequence[bool],
) -> Fused:
    """Lower ``ops.attention`` with a chain's mask to npu_fused_infer_attention_score.

    sparse_mode 3 aligns the causal triangle with the last key, so that N queries over lengths + N
    keys have a chain's mask. Trees have other masks, and are decomposed.
    """
    query, keys, values, mask = operands
    batch, nodes, heads, size = eqn.invars[0].aval.shape
    shared, dtype = eqn.invars[1].aval.shape[1], dtype_of(eqn, 0)
    require(dtype in HALF, f"{dtype}: the kernel takes float16 and bfloat16")
    require(dtype_of(eqn, 1) == dtype, f"queries are {dtype}, keys {dtype_of(eqn, 1)}")
    require(heads // shared <= 64, f"{heads // shared} query heads per key head: 64 at most")
    chain = lowering.causal.get(mask.node) if isinstance(mask, fx.Proxy) else None
    if chain is None:
        raise Unfit("the mask is not known to be a chain's (a tree's nodes see ancestors)")
    if paged:
        require(size in (64, 128, 192), f"head_dim {size}: TND takes 64, 128 and 192")
    else:
        require(size % 16 == 0 and size <= 512, f"head_dim {size}: a multiple of 16 up to 512")
    leaves = [whole(keys), whole(values)]
    capacity = capacity_of(scope, eqn)
    lengths = lowering.host_lengths(*chain)
    options = {
        "atten_mask": causal_mask(lowering),
        "actual_seq_lengths_kv": lengths,
        "num_heads": heads,
        "num_key_value_heads": shared,
        "scale": size**-0.5,
        "sparse_mode": 3,
    }
    if paged:
        require(capacity % BLOCK == 0, f"capacity {capacity} is not a multiple of {BLOCK}")
        number = batch * capacity // BLOCK
        leaves = [call(torch.reshape, physical(x), [number, BLOCK, shared * size]) for x in leaves]
        query = call(torch.reshape, query, [batch * nodes, heads, size])
        options |= {
            "input_layout": "TND",
            "actual_seq_lengths": [nodes * (row + 1) for row in range(batch)],
            "block_table": torch.arange(number, dtype=torch.int32).reshape(batch, -1),
            "block_size": BLOCK,
        }
    else:
        leaves = [physical(x) for x in leaves]
        options |= {"input_layout": "BSND"}
    both = call(npu("npu_fused_infer_attention_score"), query, *leaves, **options)
    made = call(operator.getitem, both, 0)
    if paged:
        made = call(torch.reshape, made, [batch, nodes, heads, size])
    layout = f"TND, blocks of {BLOCK}" if paged else "BSND"
    return (made,), f"npu_fused_infer_attention_score ({layout}, sparse_mode 3)"


def whole(leaf: Operand) -> Operand:
    """Return the cache leaf that a window is a slice of: the kernel reads up to the lengths."""
    if leaf.node.target is aten.slice.Tensor and leaf.node.args[1:3] == (2, 0):
        return fx.Proxy(leaf.node.args[0], leaf.tracer)
    return leaf


def capacity_of(scope: Any, eqn: Equation) -> int:
    """Return the capacity of the cache that an attention reads."""
    for inner in scope.eqns:
        if eqn.invars[1] in inner.outvars and inner.primitive.name == "slice":
            return inner.invars[0].aval.shape[2]
    return eqn.invars[1].aval.shape[2]


def causal_mask(lowering: Any) -> torch.Tensor:
    """Return the mask that sparse_mode 3 requires; True is masked OUT."""
    if "mask" not in lowering.memo:
        lowering.memo["mask"] = torch.ones(MASK, MASK, dtype=torch.int8).triu(1)
    return lowering.memo["mask"]


def top_k_top_p(
    lowering: Any, scope: Any, eqn: Equation, operands: Sequence[Operand], mine: Sequence[bool]
) -> Fused:
    """Lower ``sampling.top_k_top_p`` to npu_top_k_top_p, if ``most_top_k`` bounds top_k."""
    logits, temperature, top_k, top_p = operands
    batch, nodes, size = eqn.invars[0].aval.shape
    most = lowering.most_top_k
    require(
        most is not None and most <= min(MOST_TOP_K, size),
        f"top_k of 1 to {MOST_TOP_K} is asked for, and most_top_k={most} was promised",
    )
    warm = call(torch.clamp, temperature, 1e-5)
    scaled = call(torch.div, logits, call(torch.reshape, warm, [batch, 1, 1]))
    scaled = call(torch.reshape, scaled, [batch * nodes, size])
    p, k = (call(torch.repeat_interleave, x, nodes) for x in (top_p, top_k))
    kept = call(npu("npu_top_k_top_p"), scaled, p=cast(p, dtype_of(eqn, 0)), k=k)
    gone = call(torch.isinf, call(torch.reshape, kept, [batch, nodes, size]))
    return (call(torch.where, gone, torch.tensor(-1e30), logits),), "npu_top_k_top_p"


COMMON: dict[str, FusedKernel] = {
    "linear": linear,
    "rms_norm": rms_norm,
    "add": add,
    "rotate": rotate,
    "swiglu": swiglu,
    "attention_mask": attention_mask,
    "top_k_top_p": top_k_top_p,
}
DENSE = COMMON | {"write_kv": write_rows, "attention": functools.partial(attention, False)}
PAGED = COMMON | {"write_kv": write_pages, "attention": functools.partial(attention, True)}
