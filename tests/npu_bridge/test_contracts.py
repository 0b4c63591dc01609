"""Calls that torch_npu's documents forbid are rejected, each of them; and the snapshot is whole."""

import math

import pytest
import torch

from npu_bridge.contracts import KERNELS, ContractViolation
from npu_bridge.schemas import define, snapshot

B, N, H, KH, D, T, BLOCK = 2, 4, 4, 2, 64, 256, 128
MASK = torch.ones(2048, 2048, dtype=torch.int8).triu(1)


@pytest.fixture(autouse=True, scope="module")
def operators():
    define()


def normal(*shape, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def dense(**changes):
    options = {
        "query": normal(B, N, H, D), "key": normal(B, T, KH, D), "value": normal(B, T, KH, D),
        "atten_mask": MASK, "actual_seq_lengths_kv": [10, 200], "num_heads": H,
        "num_key_value_heads": KH, "scale": D**-0.5, "sparse_mode": 3, "input_layout": "BSND",
    }  # fmt: skip
    options |= changes
    q, k, v = (options.pop(name) for name in ("query", "key", "value"))
    options = {name: value for name, value in options.items() if value is not ...}
    return torch.ops.npu.npu_fused_infer_attention_score(q, k, v, **options)


def paged(**changes):
    pages = normal(B * T // BLOCK, BLOCK, KH * D)
    table = torch.arange(B * T // BLOCK, dtype=torch.int32).reshape(B, -1)
    options = {
        "query": normal(B * N, H, D), "key": pages, "value": pages, "input_layout": "TND",
        "actual_seq_lengths": [N, 2 * N], "block_table": table, "block_size": BLOCK,
    }  # fmt: skip
    return dense(**(options | changes))


def scatter_pages(**changes):
    cache = normal(T // BLOCK, BLOCK, KH, D)
    options = {
        "key": normal(N, KH, D), "value": normal(N, KH, D), "key_cache": cache,
        "value_cache": cache.clone(), "slot_mapping": torch.arange(N, dtype=torch.int32),
        "cache_mode": "Norm",
    }  # fmt: skip
    options = {name: value for name, value in (options | changes).items() if value is not ...}
    return torch.ops.npu.npu_scatter_pa_kv_cache(**options)


def scatter(indices, rows=3, dtype=torch.bfloat16):
    updates = normal(rows, D, dtype=dtype)
    return torch.ops.npu.npu_scatter_nd_update_(normal(T, D), indices, updates)


def rms(x=None, gamma=None, **options):
    x = normal(N, D) if x is None else x
    gamma = normal(D, dtype=torch.float32) if gamma is None else gamma
    return torch.ops.npu.npu_rms_norm(x, gamma, **options)


def rotary(size=D, angles=(B, N, 1, D), scale=1.0):
    angle = normal(*angles, dtype=torch.float32)
    return torch.ops.npu.npu_rotary_mul(
        normal(B, N, H, size, dtype=torch.float32), scale * angle.cos(), angle.sin()
    )


def top(k=None, p=None):
    k = torch.tensor([3, 5], dtype=torch.int32) if k is None else k
    p = torch.tensor([0.5, 1.0]) if p is None else p
    return torch.ops.npu.npu_top_k_top_p(normal(2, 50, dtype=torch.float32), p=p, k=k)


WRONG = {
    "a misspelt option": lambda: dense(sparse_mod=3),
    "eps for epsilon": lambda: rms(eps=1e-6),
    "num_heads left out": lambda: dense(num_heads=...),
    "scale left out": lambda: dense(scale=...),
    "float32 attention": lambda: dense(query=normal(B, N, H, D, dtype=torch.float32)),
    "keys of another dtype": lambda: dense(key=normal(B, T, KH, D, dtype=torch.float16)),
    "a float mask": lambda: dense(atten_mask=MASK.float()),
    "a mask of the wrong shape": lambda: dense(atten_mask=MASK[:N, :T]),
    "a mask turned round": lambda: dense(atten_mask=1 - MASK),
    "no mask": lambda: dense(atten_mask=None),
    "sparse_mode 0": lambda: dense(sparse_mode=0),
    "sparse_mode 9, of MLA": lambda: dense(sparse_mode=9),
    "no lengths": lambda: dense(actual_seq_lengths_kv=None),
    "lengths as a tensor": lambda: dense(actual_seq_lengths_kv=torch.tensor([1.5, 2.5])),
    "fewer keys than queries": lambda: dense(actual_seq_lengths_kv=[3, 200]),
    "lengths beyond the cache": lambda: dense(actual_seq_lengths_kv=[10, T + 1]),
    "lengths of three rows": lambda: dense(actual_seq_lengths_kv=[10, 20, 30]),
    "heads that do not divide": lambda: dense(num_key_value_heads=3),
    "heads before nodes": lambda: dense(query=normal(B, H, N, D).transpose(1, 2)),
    "query lengths one by one": lambda: paged(actual_seq_lengths=[N, N]),
    "query lengths that end early": lambda: paged(actual_seq_lengths=[N, 2 * N - 1]),
    "no block table": lambda: paged(block_table=None),
    "an int64 block table": lambda: paged(block_table=torch.arange(4).reshape(2, 2)),
    "a short block table": lambda: paged(block_table=torch.zeros(2, 1, dtype=torch.int32)),
    "a block that is not there": lambda: paged(
        block_table=torch.full((2, 2), 9, dtype=torch.int32)
    ),
    "block_size 100": lambda: paged(block_size=100),
    "no block_size": lambda: paged(block_size=...),
    "head_dim 32 in TND": lambda: paged(query=normal(B * N, H, 32), scale=32**-0.5),
    "a mask on another device": lambda: dense(atten_mask=MASK.to("meta")),
    "a pair of dtypes": lambda: rms(normal(N, D, dtype=torch.float16), normal(D)),
    "gamma of another size": lambda: rms(gamma=normal(D + 1)),
    "float64": lambda: rms(normal(N, D, dtype=torch.float64)),
    "dtypes of a sum": lambda: torch.ops.npu.npu_add_rms_norm(
        normal(N, D), normal(N, D), normal(D, dtype=torch.float32)
    ),
    "an odd half": lambda: torch.ops.npu.npu_swiglu(normal(N, 7)),
    "a half head": lambda: rotary(angles=(B, N, 1, D // 2)),
    "angles per head before nodes": lambda: rotary(angles=(B, 1, N, D)),
    "cosines beyond 1": lambda: rotary(scale=3.0),
    "a wide head": lambda: rotary(size=896, angles=(B, N, 1, 896)),
    "the default cache_mode": lambda: scatter_pages(cache_mode=...),
    "the slot -1": lambda: scatter_pages(slot_mapping=torch.tensor([0, 1, 2, -1])),
    "a slot past the end": lambda: scatter_pages(slot_mapping=torch.tensor([0, 1, 2, T])),
    "a slot twice": lambda: scatter_pages(slot_mapping=torch.tensor([0, 1, 1, 2])),
    "keys that do not lie in order": lambda: scatter_pages(key=normal(KH, N, D).transpose(0, 1)),
    "values of another dtype": lambda: scatter_pages(value=normal(N, KH, D, dtype=torch.float16)),
    "one-dimensional indices": lambda: scatter(torch.arange(3)),
    "indices out of bounds": lambda: scatter(torch.tensor([[0], [1], [T]])),
    "updates of another dtype": lambda: scatter(torch.arange(3)[:, None], dtype=torch.float32),
    "too few updates": lambda: scatter(torch.arange(3)[:, None], rows=2),
    "k before p": lambda: torch.ops.npu.npu_top_k_top_p(
        normal(2, 50, dtype=torch.float32), torch.tensor([3, 5], dtype=torch.int32), torch.ones(2)
    ),
    "k beyond 1024": lambda: top(k=torch.tensor([3, 2000], dtype=torch.int32)),
    "k of 0": lambda: top(k=torch.tensor([0, 5], dtype=torch.int32)),
    "int64 k": lambda: top(k=torch.tensor([3, 5])),
    "p of another dtype": lambda: top(p=torch.tensor([0.5, 1.0]).bfloat16()),
}  # fmt: skip
RIGHT = {
    "dense": dense, "paged": paged, "pages": scatter_pages, "rms": rms, "rotary": rotary,
    "top": top, "rows": lambda: scatter(torch.arange(3)[:, None]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_rejected(name):
    with pytest.raises((ContractViolation, RuntimeError, TypeError)):
        WRONG[name]()


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_call_is_not(name):
    RIGHT[name]()


def test_both_layouts_attend_alike():
    keys = normal(B, T, KH, D)
    pages = keys.reshape(B * T // BLOCK, BLOCK, KH * D)
    one, _ = dense(key=keys, value=keys)
    two, _ = paged(query=normal(B, N, H, D).reshape(B * N, H, D), key=pages, value=pages)
    torch.testing.assert_close(one.reshape(B * N, H, D), two, rtol=0, atol=0)


@pytest.mark.parametrize("length", [N, 127, 128, 129, 256])
def test_sparse_mode_3_is_what_verifies_a_chain(length):
    """Against PyTorch's own attention: the last query sees every key, and so backwards."""
    q, k, v = normal(1, N, H, D), normal(1, T, KH, D), normal(1, T, KH, D)
    got, _ = dense(query=q, key=k, value=v, actual_seq_lengths_kv=[length])
    seen = torch.ones(N, length, dtype=torch.bool).tril(length - N)
    q, k, v = (x.float().transpose(1, 2) for x in (q, k[:, :length], v[:, :length]))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
    torch.testing.assert_close(got.float(), wanted.transpose(1, 2), rtol=0.02, atol=0.01)


def test_top_k_top_p_keeps_the_likeliest():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1], [0.1, 0.2, 0.3, 0.4]]))
    kept = torch.ops.npu.npu_top_k_top_p(
        logits, p=torch.tensor([0.6, 1.0]), k=torch.tensor([3, 2], dtype=torch.int32)
    )
    assert (kept > -math.inf).tolist() == [[True, True, False, False], [False, False, True, True]]


def test_the_snapshot_has_every_operator_and_its_version():
    assert snapshot()["torch_npu"] == "2.13.0"
    assert set(snapshot()["schemas"]) == set(KERNELS)
    for name, schema in snapshot()["schemas"].items():
        defined = str(getattr(torch.ops.npu, name).default._schema)
        assert defined == str(torch._C.parse_schema(schema)), name
