"""Law 1 for what users run: joined matrices, weights of two bytes, every type,
layers of OPT, windows, sinks and experts."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from specjax.core.types import Int8Matrix, Params
from specjax.drafters.draft_model import draft_model
from specjax.models.build import build_target, init_params
from specjax.models.config import AttentionKind, Experts, QueryScale, Rope
from tests.laws import harness as h
from tests.laws.test_same_text import assert_bitwise, only

JOINED = dataclasses.replace(h.TINY, joined=True)
OPT = dataclasses.replace(
    JOINED,
    norm="layer",
    positions="learned",
    position_offset=2,
    mlp="relu",
    qk_norm=False,
    **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), True),
)
ROPE = Rope(dim=4, paired=True)
SPARSE = dataclasses.replace(  # facts of gpt-oss, Gemma-3 and GLM-4
    JOINED,
    qk_norm=False,
    mlp="clipped",
    sinks=True,
    sandwich=True,
    norm_offset=1.0,
    layers=(AttentionKind(window=9, rope=ROPE), AttentionKind(rope=Rope())),
    experts=Experts(
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=12,
        n_shared_experts=1,
        router_bias=True,
        bias=True,
    ),
)
CHUNKED = dataclasses.replace(  # facts of Llama 4
    JOINED,
    qk_norm_last=True,
    qk_norm_weight=False,
    layers=(
        AttentionKind(window=9, chunked=True, rope=ROPE),
        AttentionKind(query_scale=QueryScale(scale=0.7, every=6)),
    ),
    experts=Experts(
        n_routed_experts=8,
        num_experts_per_tok=1,
        moe_intermediate_size=12,
        scores="sigmoid",
        norm_topk_prob=False,
        weigh_inputs=True,
        n_shared_experts=1,
    ),
)
FORMS = {
    "float32": (JOINED, "bfloat16"),
    "bfloat16": (dataclasses.replace(JOINED, dtype="bfloat16", cache_dtype="uint16"), "bfloat16"),
    "float16": (dataclasses.replace(JOINED, dtype="float16"), "float16"),
    "OPT": (OPT, "float16"),
    "sparse": (SPARSE, "bfloat16"),
    "chunked": (CHUNKED, "bfloat16"),
    "int8": (JOINED, "int8"),
}


def whole_numbers(path, leaf):
    """Return a layer's matrix as int8 with a scale per output; other weights as they are."""
    if leaf.ndim != 2 or "layers" not in jax.tree_util.keystr(path):
        return leaf
    scales = 1.3 * jnp.abs(leaf).max(axis=1) / 127
    return Int8Matrix(jnp.round(1.3 * leaf / scales[:, None]).astype(jnp.int8), scales)


@pytest.mark.parametrize("name", FORMS)
def test_no_batch_window_chunk_or_drafter_changes_text_or_logits(name):
    config, stored = FORMS[name]
    target = build_target(config, h.TAPS)
    drawn = init_params(config, jax.random.key(0))
    if stored == "int8":
        own = jax.tree_util.tree_map_with_path(whole_numbers, drawn)
    else:
        own = jax.tree.map(lambda leaf: (1.3 * leaf).astype(jnp.dtype(stored)), drawn)
    params = Params(own, own)
    rows = [row._replace(max_tokens=50, stop_ids=()) for row in h.random_rows(8, seed=5)]

    def run(drafter, num_rows, **options):
        return h.run(drafter, rows[:num_rows], target=target, params=params, **options)

    plain = run(h.PLAIN, 8)
    for found, num_rows in (
        (run(h.PLAIN, 1), 1),
        (run(h.PLAIN, 3), 3),
        (run(h.PLAIN, 4, window=104, chunk=8), 4),
        (run(h.CHAINS["ngram"], 4), 4),
        (run(draft_model(target, h.K, "greedy"), 8), 8),
        (run(draft_model(target, h.BUSH, "coupled"), 4), 4),
    ):
        assert_bitwise(found, only(plain, slice(num_rows)))
