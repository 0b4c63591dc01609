"""One tiny config of every architecture, with weights of which none is at rest."""

import dataclasses

import jax
import jax.numpy as jnp

from specjax.models.build import init_params
from specjax.models.config import (
    AttentionKind,
    Experts,
    Indexer,
    Latent,
    Llama3Scaling,
    ModelConfig,
    QueryScale,
    Rope,
)

BASE = ModelConfig(
    vocab_size=96, hidden_size=48, intermediate_size=80, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=16, max_position_embeddings=256, norm_eps=1e-2,
)  # fmt: skip
SCALING = Llama3Scaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)
CONFIGS = {
    "llama3": dataclasses.replace(BASE, rope=Rope(scaling=SCALING)),
    "llama-biased": dataclasses.replace(BASE, qkv_bias=True, output_bias=True, mlp_bias=True),
    "mistral": dataclasses.replace(BASE, num_kv_heads=4, rope=Rope(theta=1e6)),
    "qwen2-tied": dataclasses.replace(BASE, qkv_bias=True, tie_word_embeddings=True),
    "qwen3": dataclasses.replace(BASE, qk_norm=True),
    "moe": dataclasses.replace(  # facts of gpt-oss, Gemma-3 and GLM-4 in one decoder
        BASE, sinks=True, mlp="clipped", sandwich=True, norm_offset=1.0, attention_scale=0.2,
        embed_scale=3.0, logit_cap=5.0, rope=Rope(dim=8, paired=True),
        layers=(
            AttentionKind(window=9, rope=Rope(dim=8, paired=True)), AttentionKind(rope=Rope()),
        ),
        experts=Experts(
            n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, bias=True,
            router_bias=True, correction_bias=True, scores="sigmoid", n_group=4, topk_group=2,
            n_shared_experts=1,
        ),
    ),
    "llama4": dataclasses.replace(
        BASE, qk_norm=True, qk_norm_last=True, qk_norm_weight=False,
        layers=(
            AttentionKind(window=9, chunked=True, rope=Rope(paired=True)),
            AttentionKind(query_scale=QueryScale(scale=0.7, every=6)),
        ),
        experts=Experts(
            n_routed_experts=8, num_experts_per_tok=1, moe_intermediate_size=24, scores="sigmoid",
            norm_topk_prob=False, weigh_inputs=True, n_shared_experts=1,
        ),
    ),
    "geglu": dataclasses.replace(BASE, mlp="geglu", qk_norm=True, qk_norm_last=True),
    "deepseek-v32": dataclasses.replace(
        BASE, num_kv_heads=1, rope=Rope(paired=True),
        latent=Latent(
            kv_lora_rank=24, q_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=16,
            v_head_dim=10, indexer=Indexer(num_heads=16, head_dim=24, top_k=12),
        ),
    ),
    "opt": dataclasses.replace(
        BASE, norm="layer", positions="learned", position_offset=2, mlp="relu", qkv_bias=True,
        output_bias=True, mlp_bias=True, num_kv_heads=4, tie_word_embeddings=True,
    ),
}  # fmt: skip


def weights(config: ModelConfig):
    """Draw weights; norms and biases are drawn too."""
    leaves, tree = jax.tree.flatten(init_params(config, jax.random.key(0)))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [
        leaf if leaf.ndim > 1 else leaf + 0.3 * jax.random.normal(key, leaf.shape, leaf.dtype)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(tree, [jnp.asarray(leaf) for leaf in drawn])
