"""Reference kernels of torch_npu's operators, written from its documentation.

The source is the documentation of torch_npu 2.13.0 (``torch_npu/_op_plugin_docs.py``), not our JAX
code, so that errors in either show. ``compute`` runs on a CPU: it raises for calls that the
documentation forbids, quoting it, and computes the documented formula in float32. These kernels
are for tests and certificates, not for decoding; nothing is executed on hardware.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32)
MaybeTensor = torch.Tensor | None


class ContractViolation(ValueError):
    """A call that the documentation forbids; the message quotes it."""


class Kernel(NamedTuple):
    """A reference kernel: ``compute`` on a CPU, ``describe`` for shapes alone."""

    compute: Callable[..., Any]
    describe: Callable[..., Any]


def check(fits: bool, document: str, got: object) -> None:
    """Raise ContractViolation with a quotation of the documentation unless a call fits."""
    if not fits:
        raise ContractViolation(f"{document} (got {got})")


def same_device(*tensors: torch.Tensor | None) -> None:
    """Raise ContractViolation for operands on different devices."""
    devices = {str(t.device) for t in tensors if t is not None}
    check(len(devices) == 1, "all operands on one device", sorted(devices))


def rms_norm(
    input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return y = x / sqrt(mean(x^2) + epsilon) * gamma, and the reciprocal root."""
    same_device(input, gamma)
    check(input.dtype in FLOATS, "输入数据类型仅支持float16、bfloat16和float32", input.dtype)
    pairs = gamma.dtype == input.dtype or gamma.dtype == torch.float32
    check(pairs, "gamma: x's dtype, or float32", (input.dtype, gamma.dtype))
    trailing = input.shape[input.ndim - gamma.ndim :] == gamma.shape
    check(trailing, "gamma: 通常为self的最后一维", (tuple(input.shape), tuple(gamma.shape)))
    axes = list(range(input.ndim - gamma.ndim, input.ndim))
    wide = input.float()
    rstd = torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
    return (wide * rstd * gamma.float()).to(input.dtype), rstd


def describe_rms_norm(
    input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the shapes of y and of the reciprocal root."""
    kept = input.shape[: input.ndim - gamma.ndim]
    rstd = input.new_empty([*kept, *(1 for _ in gamma.shape)], dtype=torch.float32)
    return torch.empty_like(input), rstd


def add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return y = rms_norm(x), the reciprocal root and x = x1 + x2.

    It is not in the wheel's documentation; this is CANN's aclnnAddRmsNorm.
    """
    dtypes = {x1.dtype, x2.dtype, gamma.dtype}
    check(len(dtypes) == 1, "x1, x2 and gamma: one dtype", dtypes)
    check(x1.shape == x2.shape, "x1 and x2: one shape", (tuple(x1.shape), tuple(x2.shape)))
    same_device(x1, x2)
    total = x1 + x2
    y, rstd = rms_norm(total, gamma, epsilon)
    return y, rstd, total


def describe_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the shapes of y, of the reciprocal root and of the sum."""
    y, rstd = describe_rms_norm(x1, gamma)
    return y, rstd, torch.empty_like(x1)


def rotary_mul(
    input: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: MaybeTensor = None,
) -> torch.Tensor:
    """Return r1 * x + r2 * (-x2, x1), x1 and x2 being the halves of x."""
    same_device(input, r1, r2)
    check(rotary_mode == "half", "this bridge uses 'half'", rotary_mode)
    check(rotate is None, "this bridge passes no rotate", rotate)
    for name, tensor in (("input", input), ("r1", r1), ("r2", r2)):
        check(tensor.ndim == 4, f"{name}: 4维Tensor", tensor.ndim)
        check(tensor.dtype in FLOATS, "数据类型float16, bfloat16, float32", tensor.dtype)
    check(r1.shape == r2.shape, "r2: 同r1", (tuple(r1.shape), tuple(r2.shape)))
    batch, nodes, heads, size = input.shape
    layouts = [(1, nodes, 1, size), (batch, nodes, 1, size), tuple(input.shape)]
    check(tuple(r1.shape) in layouts, "input为BSND: 1S1D、BS1D、BSND", tuple(r1.shape))
    check(size < 896 and size % 2 == 0, "D < 896，且为2的倍数", size)
    check(batch < 1000 and heads < 1000, "B, N < 1000", (batch, heads))
    check(bool((r1.abs() <= 1).all() & (r2.abs() <= 1).all()), "r1: 数据范围：[-1, 1]", "more")
    first, second = input.float().chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return (r1.float() * input.float() + r2.float() * turned).to(input.dtype)


def swiglu(self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Return swish(A) * B, A and B being the halves of x."""
    check(self.dtype in FLOATS, "dtype支持FP32、FP16或BF16类型", self.dtype)
    check(1 <= self.ndim <= 8, "shape支持1-8维", self.ndim)
    check(self.shape[dim] % 2 == 0, "A和B是x沿dim维度切分的Tensor: even", self.shape[dim])
    check(self.is_contiguous(), "contiguous", self.stride())
    gate, up = self.float().chunk(2, dim)
    return (gate * torch.sigmoid(gate) * up).to(self.dtype)


def describe_swiglu(self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Return a tensor of the result's shape."""
    shape = list(self.shape)
    shape[dim] //= 2
    return self.new_empty(shape)


def check_places(places: torch.Tensor, limit: int, document: str) -> None:
    """Raise ContractViolation for indices out of bounds."""
    inside = bool(((places >= 0) & (places < limit)).all())
    check(inside, document, f"{places.flatten().tolist()[:8]} of {limit}")


def scatter_nd_update(
    input: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    """Return ``input`` with rows set at indices, in place."""
    same_device(input, indices, updates)
    check(indices.dtype in (torch.int32, torch.int64), "indices: int32、int64", indices.dtype)
    check(indices.ndim >= 2, "indices至少是2维", indices.ndim)
    check(input.dtype == updates.dtype, "数据类型需要与input一致", (input.dtype, updates.dtype))
    last = indices.shape[-1]
    check(last <= input.ndim, "其最后1维的大小不能超过input的维度大小", last)
    wanted = (*indices.shape[:-1], *input.shape[last:])
    check(tuple(updates.shape) == wanted, "updates的shape等于...", tuple(updates.shape))
    for axis in range(last):
        check_places(indices[..., axis], input.shape[axis], "indices中的索引数据不支持越界")
    input[tuple(indices.unbind(-1))] = updates
    return input


def scatter_pa_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: MaybeTensor = None,
    compress_seq_offsets: MaybeTensor = None,
    seq_lens: MaybeTensor = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Set slots of a paged cache, in place (the second case in the documentation)."""
    same_device(key, value, key_cache, value_cache, slot_mapping)
    check(cache_mode in (None, "Norm"), "当传None或'Norm'时，仅支持ND内存排布格式", cache_mode)
    extra = (compress_lens, compress_seq_offsets, seq_lens)
    check(extra == (None,) * 3, "场景一、场景二没有...这三个可选参数", extra)
    tensors = {"key": key, "value": value, "key_cache": key_cache, "value_cache": value_cache}
    dtypes = {t.dtype for t in tensors.values()}
    check(len(dtypes) == 1, "key、value、key_cache、value_cache的数据类型必须一致", dtypes)
    for name, tensor in tensors.items():
        check(tensor.is_contiguous(), f"输入参数不支持非连续: {name}", tensor.stride())
        rank = 4 if "cache" in name else 3
        check(tensor.ndim == rank, f"{name}: {rank} axes", tuple(tensor.shape))
    check(key.shape[:2] == value.shape[:2], "key和value的前两维shape必须相同", tuple(value.shape))
    blocks, size = key_cache.shape[:2]
    fits = key_cache.shape[2:] == key.shape[1:] and value_cache.shape[2:] == value.shape[1:]
    check(fits, "[num_blocks, block_size, num_head, head_size]", tuple(key_cache.shape))
    integer = slot_mapping.dtype in (torch.int32, torch.int64)
    check(integer, "slot_mapping: 数据类型支持int32和int64", slot_mapping.dtype)
    check(
        tuple(slot_mapping.shape) == (len(key),),
        "slotMapping:[batch * seq_len]",
        slot_mapping.shape,
    )
    check_places(slot_mapping, blocks * size, "值范围[0,num_blocks*block_size-1]")
    different = len(slot_mapping.unique()) == len(slot_mapping)
    check(different, "slot_mapping内的元素值保证不重复", slot_mapping.tolist())
    for cache, new in ((key_cache, key), (value_cache, value)):
        cache.view(blocks * size, *cache.shape[2:])[slot_mapping.long()] = new


def describe_nothing(*args: Any, **options: Any) -> None:
    """Return None, for an operator without results."""


def top_k_top_p(logits: torch.Tensor, p: MaybeTensor = None, k: MaybeTensor = None) -> torch.Tensor:
    """Return logits after top-k, then top-p: those cut off are -inf."""
    same_device(logits, p, k)
    check(logits.ndim == 2 and logits.dtype in FLOATS, "logits: 支持2维", tuple(logits.shape))
    check(p is not None or k is not None, "不支持p和k同时传None", None)
    rows, size = logits.shape
    order = logits.float().sort(dim=-1, stable=True)
    kept = order.values
    if k is not None:
        check(k.dtype == torch.int32, "k: 数据类型支持torch.int32", k.dtype)
        check(tuple(k.shape) == (rows,), "k: shape支持1维且需要与logits的首轴相同", tuple(k.shape))
        inside = bool(((k >= 1) & (k <= min(1024, size))).all())
        check(inside, "值域为[1, 1024]，且最大值需要小于等于logits.size(1)", k.tolist())
        least = kept.gather(1, (size - k.long())[:, None])
        kept = kept.masked_fill(kept < least, -math.inf)
    if p is not None:
        check(p.dtype == logits.dtype, "p: 数据类型需要与logits一致", p.dtype)
        check(tuple(p.shape) == (rows,), "p: shape支持1维且需要与logits的首轴相同", tuple(p.shape))
        check(bool(((p >= 0) & (p <= 1)).all()), "值域为[0, 1]", p.tolist())
        gone = kept.softmax(-1).cumsum(-1) <= 1 - p.float()[:, None]
        gone[:, -1] = False
        kept = kept.masked_fill(gone, -math.inf)
    return torch.empty_like(kept).scatter_(1, order.indices, kept).to(logits.dtype)


def describe_like(first: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """Return a tensor of the first operand's shape."""
    return torch.empty_like(first)


def fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    pse_shift: MaybeTensor = None,
    atten_mask: MaybeTensor = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    dequant_scale1: MaybeTensor = None,
    quant_scale1: MaybeTensor = None,
    dequant_scale2: MaybeTensor = None,
    quant_scale2: MaybeTensor = None,
    quant_offset2: MaybeTensor = None,
    antiquant_scale: MaybeTensor = None,
    antiquant_offset: MaybeTensor = None,
    key_antiquant_scale: MaybeTensor = None,
    key_antiquant_offset: MaybeTensor = None,
    value_antiquant_scale: MaybeTensor = None,
    value_antiquant_offset: MaybeTensor = None,
    block_table: Any = None,
    query_padding_size: MaybeTensor = None,
    kv_padding_size: MaybeTensor = None,
    key_shared_prefix: MaybeTensor = None,
    value_shared_prefix: MaybeTensor = None,
    actual_shared_prefix_len: Sequence[int] | None = None,
    query_rope: MaybeTensor = None,
    key_rope: MaybeTensor = None,
    key_rope_antiquant_scale: MaybeTensor = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention with the mask of sparse_mode 3, over dense rows (BSND) or blocks (TND)."""
    same_device(query, key, value, atten_mask, block_table)
    unused = (pse_shift, dequant_scale1, quant_scale1, dequant_scale2, quant_scale2, quant_offset2,
              antiquant_scale, antiquant_offset, key_antiquant_scale, key_antiquant_offset,
              value_antiquant_scale, value_antiquant_offset, query_padding_size, kv_padding_size,
              key_shared_prefix, value_shared_prefix, actual_shared_prefix_len, query_rope,
              key_rope, key_rope_antiquant_scale)  # fmt: skip
    check(all(one is None for one in unused), "this bridge quantizes and pads nothing", "more")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check(tensor.dtype in HALF, f"{name}: 数据类型支持float16、bfloat16", tensor.dtype)
        check(tensor.dtype == query.dtype, f"{name}: query's dtype", tensor.dtype)
        check(tensor.is_contiguous(), f"{name}: 不支持非连续的Tensor", tensor.stride())
    check(key.shape == value.shape, "key、value中对应tensor的shape需要完全一致", tuple(value.shape))
    check(
        sparse_mode == 3,
        "sparse_mode 3; 0 with a mask has been reported to err silently",
        sparse_mode,
    )
    if atten_mask is None:
        raise ContractViolation("需要传入优化后的atten_mask矩阵(2048*2048) (got None)")
    kinds = (torch.bool, torch.int8, torch.uint8)
    check(atten_mask.dtype in kinds, "atten_mask: 数据类型支持bool、int8和uint8", atten_mask.dtype)
    shapes = [(2048, 2048), (1, 2048, 2048), (1, 1, 2048, 2048)]
    check(tuple(atten_mask.shape) in shapes, "S的值需要固定为2048", tuple(atten_mask.shape))
    causal = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    right = torch.equal(atten_mask.reshape(2048, 2048).bool(), causal)
    check(right, "需要用户保证传入的atten_mask为下三角 (True is masked out)", "another")
    shared = num_key_value_heads or num_heads
    check(num_heads % shared == 0, "需要满足num_heads整除num_key_value_heads", (num_heads, shared))
    check(num_heads // shared <= 64, "比值不能大于64", num_heads // shared)
    if actual_seq_lengths_kv is None:
        raise ContractViolation("必须传入actual_seq_lengths_kv (got None)")
    check(input_layout in ("BSND", "TND"), "this bridge uses BSND and TND", input_layout)
    size, lengths = query.shape[-1], list(actual_seq_lengths_kv)
    check(math.isclose(scale, size**-0.5, rel_tol=1e-6), "scale: 公式中d开根号的倒数", scale)
    if input_layout == "TND":
        rows = unpack_queries(query, actual_seq_lengths, num_heads)
        keys, values = (
            read_pages(leaf, block_table, block_size, lengths, len(rows), shared, size)
            for leaf in (key, value)
        )
    else:
        check(query.ndim == 4 and key.ndim == 4, "BSND-(B,Q_S,Q_N,D)", tuple(query.shape))
        batch, _, heads, _ = query.shape
        check(heads == num_heads, "num_heads: N轴shape值相同", (heads, num_heads))
        check(key.shape[2] == shared, "还需要与shape中的key/value的N轴shape值相同", key.shape[2])
        check(size % 16 == 0 and size <= 512, "D轴需16对齐, 支持D轴小于等于512", size)
        check(heads * size < 65535, "input_layout为BSND时, 要求N*D小于65535", heads * size)
        check(len(lengths) in (1, batch), "传入长度为1, 或Batch个数. 其他长度不支持", len(lengths))
        lengths = lengths * batch if len(lengths) == 1 else lengths
        check(max(lengths) <= key.shape[1], "seqlenKv应该不大于key/value中对应Batch的", lengths)
        check(actual_seq_lengths is None, "as long as the query's S", actual_seq_lengths)
        rows = list(query.unbind(0))
        keys, values = ([leaf[i, :n] for i, n in enumerate(lengths)] for leaf in (key, value))
    made = [attend(*one, scale) for one in zip(rows, keys, values, strict=True)]
    out = torch.cat(made) if input_layout == "TND" else torch.stack(made)
    return out.to(query.dtype), torch.zeros(1)


def unpack_queries(query: torch.Tensor, ends: Any, num_heads: int) -> list[torch.Tensor]:
    """Return packed queries [T, N, D] split at their cumulative lengths."""
    check(query.ndim == 3, "TND-(T,Q_N,D)", tuple(query.shape))
    total, heads, size = query.shape
    check(heads == num_heads, "num_heads: N轴shape值相同", (heads, num_heads))
    check(total <= 65536, "T小于等于65536", total)
    check(size in (64, 128, 192), "TND: D 64, 128 or 192", size)
    check(isinstance(ends, list | tuple), "当query的input_layout为TND时, 该入参必须传入", ends)
    ordered = all(b >= a >= 0 for a, b in zip([0, *ends], ends, strict=False))
    check(
        ordered and ends[-1] == total, "后一个元素的值必须大于等于前一个; the last is T", list(ends)
    )
    return [query[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def read_pages(
    leaf: torch.Tensor,
    table: torch.Tensor,
    block: int,
    lengths: Sequence[int],
    batch: int,
    shared: int,
    size: int,
) -> list[torch.Tensor]:
    """Return each row's keys or values [length, KH, D], gathered from its blocks."""
    check(table is not None, "page attention的使能必要条件是block_table存在且有效", None)
    check(table.dtype == torch.int32, "block_table: 数据类型支持int32", table.dtype)
    check(
        table.ndim == 2 and len(table) == batch,
        "block_table必须为二维, 第一维长度需等于B",
        table.shape,
    )
    multiple = 128 <= block <= 512 and block % 128 == 0
    check(multiple, "block_size最小为128, 最大为512, 且要求是128的倍数", block)
    wanted = (leaf.shape[0], block, shared * size)
    check(tuple(leaf.shape) == wanted, "(blocknum, blocksize, H)", tuple(leaf.shape))
    check(shared * size <= 65535, "KV_N*D超过65535时...会被拦截报错", shared * size)
    check(len(lengths) == batch, "actual_seq_lengths_kv: one per request", len(lengths))
    enough = table.shape[1] * block >= max(lengths)
    check(enough, "第二维长度不能小于maxBlockNumPerSeq", (tuple(table.shape), lengths))
    check_places(table, leaf.shape[0], "block_table中填充的是blockid")
    pages = leaf.view(*leaf.shape[:2], shared, size)[table.long()].flatten(1, 2)
    return [pages[row, :length] for row, length in enumerate(lengths)]


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return causal attention of [Q, N, D] over [L, KH, D]; the last query is at the last key."""
    number, length = len(query), len(keys)
    check(
        length >= number,
        "sparse_mode=3, 每个batch actual_seq_lengths_kv-actual_seq_lengths<0",
        length,
    )
    groups = query.shape[1] // keys.shape[1]
    keys, values = (x.float().repeat_interleave(groups, 1) for x in (keys, values))
    scores = torch.einsum("qnd,lnd->nql", query.float(), keys) * scale
    hidden = torch.ones(number, length, dtype=torch.bool).triu(length - number + 1)
    probs = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("nql,lnd->qnd", probs, values)


def describe_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: MaybeTensor = None,
    block_table: MaybeTensor = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tensors of the result's shape, and of the log-sum-exp's, which is not computed."""
    same_device(query, key, value, atten_mask, block_table)
    return torch.empty_like(query), query.new_empty([1], dtype=torch.float32)


KERNELS = {
    "npu_rms_norm": Kernel(rms_norm, describe_rms_norm),
    "npu_add_rms_norm": Kernel(add_rms_norm, describe_add_rms_norm),
    "npu_rotary_mul": Kernel(rotary_mul, describe_like),
    "npu_swiglu": Kernel(swiglu, describe_swiglu),
    "npu_scatter_nd_update_": Kernel(scatter_nd_update, lambda input, indices, updates: input),
    "npu_scatter_pa_kv_cache": Kernel(scatter_pa_kv_cache, describe_nothing),
    "npu_top_k_top_p": Kernel(top_k_top_p, describe_like),
    "npu_fused_infer_attention_score": Kernel(fused_infer_attention_score, describe_attention),
}
