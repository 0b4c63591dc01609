"""Targets: decoders of the Llama family and DeepSeek's latent attention, with their MTP layers.

Layer 0 has a head that looks one token back and writes ``recall`` of it; everything else is
noise, scaled by ``gain``.
"""

from typing import Any

import numpy as np

from tests.checkpoints.language import (
    ANCHOR,
    EMBED_SCALE,
    HEAD_DIM,
    HIDDEN,
    INTERMEDIATE,
    ROPE_THETA,
    SHARPNESS,
    STREAM_SCALE,
    VOCAB,
    Language,
    Weights,
    look_back,
    mlp,
    noise,
    norm,
    prefixed,
)

HEADS, KV_HEADS = 2, 1
LATENT, ROPE_DIM, NOPE_DIM, QUERY_RANK = 512, 64, 16, 32  # DeepSeek's attention

FAMILY: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": INTERMEDIATE,
    "max_position_embeddings": 1024,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-5,
    "rope_theta": ROPE_THETA,
    "tie_word_embeddings": False,
    "dtype": "float32",
    "vocab_size": VOCAB,
}
LLAMA = FAMILY | {"model_type": "llama", "head_dim": HEAD_DIM}
QWEN3 = FAMILY | {"model_type": "qwen3", "head_dim": HEAD_DIM}
MIMO = FAMILY | {
    "architectures": ["MiMoForCausalLM"],
    "model_type": "qwen2",
    "attention_bias": True,
    "num_nextn_predict_layers": 1,
}
DEEPSEEK = FAMILY | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_key_value_heads": HEADS,
    "kv_lora_rank": LATENT,
    "q_lora_rank": QUERY_RANK,
    "qk_nope_head_dim": NOPE_DIM,
    "qk_rope_head_dim": ROPE_DIM,
    "v_head_dim": HEAD_DIM,
    "num_nextn_predict_layers": 1,
    "rope_scaling": {  # factor 1 scales nothing, but keeps vLLM off its CPU kernel for RoPE
        "rope_type": "yarn",
        "factor": 1.0,
        "original_max_position_embeddings": FAMILY["max_position_embeddings"],
    },
}

EXPERTS: dict[str, Any] = {  # of every layer but the first
    "first_k_dense_replace": 1,
    "moe_intermediate_size": INTERMEDIATE,
    "n_group": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sigmoid",
    "topk_group": 2,
    "topk_method": "noaux_tc",
}


def attention(rng: np.random.Generator, gain: float, config: dict[str, Any]) -> Weights:
    """Draw grouped attention, with Qwen3's norms or Qwen2's biases where the config has them."""
    weights = {
        "self_attn.q_proj.weight": noise(rng, HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj.weight": noise(rng, KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj.weight": noise(rng, KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj.weight": noise(rng, HIDDEN, HEADS * HEAD_DIM, gain),
    }
    if config["model_type"] == "qwen3":
        weights["self_attn.q_norm.weight"] = norm(rng, HEAD_DIM)
        weights["self_attn.k_norm.weight"] = norm(rng, HEAD_DIM)
    if config["model_type"] == "qwen2":
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            bias = 0.1 * rng.standard_normal(heads * HEAD_DIM)
            weights[f"self_attn.{name}_proj.bias"] = bias
    return weights


def recall_previous(weights: Weights, language: Language) -> None:
    """Make head 0 copy ``recall`` of the previous token into the stream."""
    query, key, value, output = (weights[f"self_attn.{p}_proj.weight"] for p in "qkvo")
    query[:HEAD_DIM], key[:], value[:] = 0.0, 0.0, np.eye(HEAD_DIM, HIDDEN)
    query[:HEAD_DIM, 0], key[:, 0] = (vector / ANCHOR for vector in look_back(1))
    output[:, :HEAD_DIM] = EMBED_SCALE * language.recall[:, :HEAD_DIM]
    if "self_attn.q_norm.weight" in weights:
        weights["self_attn.q_norm.weight"] *= SHARPNESS
        weights["self_attn.k_norm.weight"] *= SHARPNESS


def latent_attention(rng: np.random.Generator, gain: float) -> Weights:
    """Draw DeepSeek's latent attention (arXiv:2405.04434)."""
    return {
        "self_attn.q_a_proj.weight": noise(rng, QUERY_RANK, HIDDEN),
        "self_attn.q_a_layernorm.weight": norm(rng, QUERY_RANK),
        "self_attn.q_b_proj.weight": noise(rng, HEADS * (NOPE_DIM + ROPE_DIM), QUERY_RANK),
        "self_attn.kv_a_proj_with_mqa.weight": noise(rng, LATENT + ROPE_DIM, HIDDEN),
        "self_attn.kv_a_layernorm.weight": norm(rng, LATENT),
        "self_attn.kv_b_proj.weight": noise(rng, HEADS * (NOPE_DIM + HEAD_DIM), LATENT),
        "self_attn.o_proj.weight": noise(rng, HIDDEN, HEADS * HEAD_DIM, gain),
    }


def recall_previous_latent(weights: Weights, language: Language) -> None:
    """Make head 0 of latent attention copy ``recall`` of the previous token.

    The latent begins with the vector itself, eight times over so that its norm is the
    vector's. DeepSeek pairs neighbouring rotary features, not the two halves.
    """
    query, key = (v.reshape(2, -1).T.ravel() / ANCHOR for v in look_back(1, ROPE_DIM))
    down, up = weights["self_attn.q_a_proj.weight"], weights["self_attn.q_b_proj.weight"]
    down[0], up[: NOPE_DIM + ROPE_DIM] = 0.0, 0.0
    down[0, 0], up[NOPE_DIM : NOPE_DIM + ROPE_DIM, 0] = 4.0, query / 2.0
    latent, values = (weights[f"self_attn.kv_{n}.weight"] for n in ("a_proj_with_mqa", "b_proj"))
    copies = LATENT // HIDDEN
    latent[:LATENT], latent[LATENT:] = np.tile(np.eye(HIDDEN), (copies, 1)), 0.0
    latent[LATENT:, 0] = key
    values[NOPE_DIM : NOPE_DIM + HEAD_DIM] = np.tile(np.eye(HEAD_DIM, HIDDEN), copies) / copies
    output = weights["self_attn.o_proj.weight"]
    output[:, :HEAD_DIM] = EMBED_SCALE * language.recall[:, :HEAD_DIM]


def mixture(rng: np.random.Generator, gain: float, config: dict[str, Any]) -> Weights:
    """Draw DeepSeek's experts (arXiv:2412.19437); the bias is large enough to change choices."""
    count = config["n_routed_experts"]
    weights = {
        "mlp.gate.weight": noise(rng, count, HIDDEN),
        "mlp.gate.e_score_correction_bias": 0.2 * rng.standard_normal(count),
    }
    for name in ("shared_experts", *(f"experts.{i}" for i in range(count))):
        weights |= {key.replace("mlp", f"mlp.{name}"): w for key, w in mlp(rng, gain).items()}
    return weights


def layer(rng: np.random.Generator, gain: float, config: dict[str, Any], index: int = 0) -> Weights:
    """Draw one decoder layer."""
    latent = config["model_type"] == "deepseek_v3"
    mixed = "n_routed_experts" in config and index >= config["first_k_dense_replace"]
    return {
        "input_layernorm.weight": norm(rng, HIDDEN),
        "post_attention_layernorm.weight": norm(rng, HIDDEN),
        **(latent_attention(rng, gain) if latent else attention(rng, gain, config)),
        **(mixture(rng, gain, config) if mixed else mlp(rng, gain)),
    }


def decoder(
    rng: np.random.Generator, language: Language, gain: float, config: dict[str, Any]
) -> Weights:
    """Draw a whole decoder that follows the language."""
    weights = {
        "model.embed_tokens.weight": language.embed,
        "model.norm.weight": norm(rng, HIDDEN, STREAM_SCALE),
        "lm_head.weight": language.head(),
    }
    for i in range(config["num_hidden_layers"]):
        block = layer(rng, gain, config, i)
        if i == 0:
            latent = config["model_type"] == "deepseek_v3"
            (recall_previous_latent if latent else recall_previous)(block, language)
        weights |= prefixed(f"model.layers.{i}.", block)
    return weights


def mimo_mtp(
    rng: np.random.Generator, language: Language, gain: float, config: dict[str, Any]
) -> Weights:
    """Draw MiMo's MTP layer, which reads [hidden ; embedding] (arXiv:2505.07608)."""
    return {
        "token_layernorm.weight": norm(rng, HIDDEN, EMBED_SCALE),
        "hidden_layernorm.weight": norm(rng, HIDDEN, STREAM_SCALE),
        "input_proj.weight": np.hstack([language.recall, np.eye(HIDDEN)]),
        "final_layernorm.weight": norm(rng, HIDDEN, STREAM_SCALE),
        **layer(rng, gain, config),
    }


def deepseek_mtp(
    rng: np.random.Generator, language: Language, gain: float, config: dict[str, Any]
) -> Weights:
    """Draw DeepSeek-V3's MTP layer, which reads [embedding ; hidden] (arXiv:2412.19437)."""
    return {
        "embed_tokens.weight": language.embed,
        "enorm.weight": norm(rng, HIDDEN, EMBED_SCALE),
        "hnorm.weight": norm(rng, HIDDEN, STREAM_SCALE),
        "eh_proj.weight": np.hstack([np.eye(HIDDEN), language.recall]),
        "shared_head.norm.weight": norm(rng, HIDDEN, STREAM_SCALE),
        "shared_head.head.weight": language.head(),
        **layer(rng, gain, config, config["num_hidden_layers"]),
    }
