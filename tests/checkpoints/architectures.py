"""A tiny random checkpoint per architecture, with the names and settings of the published ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoints.cycle import write
from tests.checkpoints.language import Weights, noise, norm, prefixed, stream

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEATURES = 256, 128, 4, 2, 32, 96
LAYERS, WINDOW, EXPERTS, CHOSEN, EXPERT_FEATURES = 3, 16, 8, 3, 64
LATENT, ROPE_DIM, NOPE_DIM, QUERY_RANK = 512, 64, 16, 48  # the sizes that vLLM's kernel takes
GAIN = 1.5  # of a matrix: louder than fresh ones, so that every layer shows in the text

Facts = dict[str, Any]
Layer = Callable[[np.random.Generator, Facts, int], Weights]

BASE: Facts = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": FEATURES,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "dtype": "float32",
}
HEAD: Facts = {"head_dim": HEAD_DIM}  # where published files have it
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
YARN: Facts = {
    "rope_type": "yarn",
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 32,
}
SIGMOID: Facts = {  # DeepSeek-V3's router
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": CHOSEN,
    "moe_intermediate_size": EXPERT_FEATURES,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
}
NEXT: Facts = HEAD | {
    "full_attention_interval": 3,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
QWEN_EXPERTS: Facts = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "moe_intermediate_size": EXPERT_FEATURES,
    "norm_topk_prob": True,
}


def bias(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw a bias."""
    return 0.3 * rng.standard_normal(shape)


def weight(rng: np.random.Generator, out: int, size: int) -> np.ndarray:
    """Draw a matrix [out, size]."""
    return noise(rng, out, size, GAIN)


def scale(rng: np.random.Generator, size: int = HIDDEN, offset: float = 0.0) -> np.ndarray:
    """Draw the weight of a norm that multiplies by ``offset`` plus it."""
    return norm(rng, size) + 0.25 * rng.standard_normal(size) - offset


def attention(
    rng: np.random.Generator, biases: str = "", norms: tuple[str, ...] = (), offset: float = 0.0
) -> Weights:
    """Draw grouped attention; ``biases`` names projections, ``norms`` those of queries and keys."""
    sizes = {"q": (HEADS, HIDDEN), "k": (KV_HEADS, HIDDEN), "v": (KV_HEADS, HIDDEN)}
    weights = {
        f"self_attn.{name}_proj.weight": weight(rng, heads * HEAD_DIM, size)
        for name, (heads, size) in sizes.items()
    }
    weights["self_attn.o_proj.weight"] = weight(rng, HIDDEN, HEADS * HEAD_DIM)
    for name in biases:
        key = f"self_attn.{name}_proj."
        weights[f"{key}bias"] = bias(rng, len(weights[f"{key}weight"]))
    return weights | {f"self_attn.{name}.weight": scale(rng, HEAD_DIM, offset) for name in norms}


def mlp(
    rng: np.random.Generator,
    features: int = FEATURES,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Weights:
    """Draw a gated MLP."""
    gate, up, down = names
    return {
        f"{gate}.weight": weight(rng, features, HIDDEN),
        f"{up}.weight": weight(rng, features, HIDDEN),
        f"{down}.weight": weight(rng, HIDDEN, features),
    }


def joined(weights: Weights, name: str, parts: tuple[str, ...]) -> Weights:
    """Put matrices one behind the other into one tensor."""
    matrices = [weights.pop(f"{part}.weight") for part in parts]
    return weights | {f"{name}.weight": np.concatenate(matrices)}


def norms(rng: np.random.Generator, *names: str, offset: float = 0.0) -> Weights:
    """Draw norms of the residual stream."""
    return {f"{name}.weight": scale(rng, offset=offset) for name in names}


def experts(rng: np.random.Generator, *names: str) -> Weights:
    """Draw a router and its experts, one by one."""
    weights = {"gate.weight": weight(rng, EXPERTS, HIDDEN)}
    for i in range(EXPERTS):
        one = mlp(rng, EXPERT_FEATURES, names) if names else mlp(rng, EXPERT_FEATURES)
        weights |= prefixed(f"experts.{i}.", one)
    return weights


PRE = "input_layernorm", "post_attention_layernorm"
QK = "q_norm", "k_norm"


def llama(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of Llama, Mistral, Ministral, ERNIE."""
    return attention(rng) | prefixed("mlp.", mlp(rng)) | norms(rng, *PRE)


def qwen2(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of Qwen2 and MiMo."""
    return attention(rng, "qkv") | prefixed("mlp.", mlp(rng)) | norms(rng, *PRE)


def qwen3(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of Qwen3."""
    return attention(rng, norms=QK) | prefixed("mlp.", mlp(rng)) | norms(rng, *PRE)


def qwen3_moe(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of Qwen3-MoE."""
    return attention(rng, norms=QK) | prefixed("mlp.", experts(rng)) | norms(rng, *PRE)


def mixtral(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of Mixtral."""
    mixture = prefixed("block_sparse_moe.", experts(rng, "w1", "w3", "w2"))
    return attention(rng) | mixture | norms(rng, *PRE)


def sigmoid_mixture(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw DeepSeek-V3's mixture, or in the first layer an MLP."""
    if index < config["first_k_dense_replace"]:
        return prefixed("mlp.", mlp(rng))
    mixture = experts(rng) | {"gate.e_score_correction_bias": bias(rng, EXPERTS)}
    shared = prefixed("shared_experts.", mlp(rng, EXPERT_FEATURES))
    return prefixed("mlp.", mixture | shared)


def glm4_moe(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of GLM-4.5."""
    own = attention(rng, "qkv", QK)
    return own | sigmoid_mixture(rng, config, index) | norms(rng, *PRE)


def deepseek(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of DeepSeek-V3."""
    query, value = HEADS * (NOPE_DIM + ROPE_DIM), HEADS * (NOPE_DIM + HEAD_DIM)
    own = {
        "self_attn.q_a_proj.weight": weight(rng, QUERY_RANK, HIDDEN),
        "self_attn.q_a_layernorm.weight": scale(rng, QUERY_RANK),
        "self_attn.q_b_proj.weight": weight(rng, query, QUERY_RANK),
        "self_attn.kv_a_proj_with_mqa.weight": weight(rng, LATENT + ROPE_DIM, HIDDEN),
        "self_attn.kv_a_layernorm.weight": scale(rng, LATENT),
        "self_attn.kv_b_proj.weight": weight(rng, value, LATENT),
        "self_attn.o_proj.weight": weight(rng, HIDDEN, HEADS * HEAD_DIM),
    }
    return own | sigmoid_mixture(rng, config, index) | norms(rng, *PRE)


def gpt_oss(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of gpt-oss: experts are one tensor, input first, gate and up take turns."""
    router = {
        "mlp.router.weight": weight(rng, EXPERTS, HIDDEN),
        "mlp.router.bias": bias(rng, EXPERTS),
    }
    wide = 2 * FEATURES
    gate_up = np.stack([weight(rng, wide, HIDDEN).T for _ in range(EXPERTS)])
    down = np.stack([weight(rng, HIDDEN, FEATURES).T for _ in range(EXPERTS)])
    mixture = {
        "mlp.experts.gate_up_proj": gate_up,
        "mlp.experts.gate_up_proj_bias": bias(rng, EXPERTS, wide),
        "mlp.experts.down_proj": down,
        "mlp.experts.down_proj_bias": bias(rng, EXPERTS, HIDDEN),
    }
    own = attention(rng, "qkvo") | {"self_attn.sinks": 2.0 * rng.standard_normal(HEADS)}
    return own | router | mixture | norms(rng, *PRE)


def glm4(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of GLM-4: gate and up are one tensor, and there are four norms."""
    own = joined(mlp(rng), "gate_up_proj", ("gate_proj", "up_proj"))
    names = *PRE, "post_self_attn_layernorm", "post_mlp_layernorm"
    return attention(rng, "qkv") | prefixed("mlp.", own) | norms(rng, *names)


def gemma3(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of Gemma-3, whose norms multiply by 1 plus their weights."""
    names = *PRE, "pre_feedforward_layernorm", "post_feedforward_layernorm"
    own = attention(rng, norms=QK, offset=1.0) | prefixed("mlp.", mlp(rng))
    return own | norms(rng, *names, offset=1.0)


def phi3(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of Phi-3: queries, keys and values are one tensor."""
    parts = tuple(f"self_attn.{name}_proj" for name in "qkv")
    own = joined(attention(rng), "self_attn.qkv_proj", parts)
    gates = joined(mlp(rng), "gate_up_proj", ("gate_proj", "up_proj"))
    return own | prefixed("mlp.", gates) | norms(rng, *PRE)


def llama4(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of Llama 4: experts are one tensor, input first, beside a shared one."""
    if (index + 1) % config["interleave_moe_layer_step"]:
        own = mlp(rng)
    else:
        gate_up = [weight(rng, 2 * EXPERT_FEATURES, HIDDEN).T for _ in range(EXPERTS)]
        down = [weight(rng, HIDDEN, EXPERT_FEATURES).T for _ in range(EXPERTS)]
        own = {
            "router.weight": weight(rng, EXPERTS, HIDDEN),
            "experts.gate_up_proj": np.stack(gate_up),
            "experts.down_proj": np.stack(down),
        }
        own |= prefixed("shared_expert.", mlp(rng, EXPERT_FEATURES))
    return attention(rng) | prefixed("feed_forward.", own) | norms(rng, *PRE)


def hunyuan(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of Hunyuan."""
    own = attention(rng, norms=("query_layernorm", "key_layernorm"))
    return own | prefixed("mlp.", mlp(rng)) | norms(rng, *PRE)


def opt(rng: np.random.Generator, config: Facts, index: int) -> Weights:
    """Draw a layer of OPT."""
    sizes = {
        **{f"self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "out")},
        "fc1": (FEATURES, HIDDEN),
        "fc2": (HIDDEN, FEATURES),
    }
    weights = {f"{name}.weight": weight(rng, *size) for name, size in sizes.items()}
    weights |= {f"{name}.bias": bias(rng, out) for name, (out, _) in sizes.items()}
    for name in ("self_attn_layer_norm", "final_layer_norm"):
        weights |= norms(rng, name) | {f"{name}.bias": bias(rng, HIDDEN)}
    return weights


def divisors(pairs: int, last: float) -> list[float]:
    """Return growing divisors of RoPE's pairs, from 1 on."""
    return np.linspace(1.0, last, pairs).tolist()


# name: (architectures[0], model_type, settings beside ``BASE``, a layer's tensors)
ARCHITECTURES: dict[str, tuple[str, str, Facts, Layer]] = {
    "llama3": (
        "LlamaForCausalLM",
        "llama",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
        llama,
    ),
    "mistral": ("MistralForCausalLM", "mistral", {"sliding_window": WINDOW}, llama),
    "ministral": (
        "MinistralForCausalLM",
        "ministral",
        HEAD | {"sliding_window": WINDOW, "layer_types": MIXED},
        llama,
    ),
    "mixtral": (
        "MixtralForCausalLM",
        "mixtral",
        {"num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "sliding_window": None}
        | {"intermediate_size": EXPERT_FEATURES},
        mixtral,
    ),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", {"use_sliding_window": False}, qwen2),
    "qwen3": (
        "Qwen3ForCausalLM",
        "qwen3",
        HEAD | {"use_sliding_window": False, "attention_bias": False},
        qwen3,
    ),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        HEAD | QWEN_EXPERTS | {"decoder_sparse_step": 1, "mlp_only_layers": []},
        qwen3_moe,
    ),
    "mimo": ("MiMoForCausalLM", "qwen2", {"num_nextn_predict_layers": 0}, qwen2),
    "deepseek-v3": (
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        SIGMOID
        | {"num_key_value_heads": HEADS, "kv_lora_rank": LATENT, "q_lora_rank": QUERY_RANK}
        | {"qk_nope_head_dim": NOPE_DIM, "qk_rope_head_dim": ROPE_DIM, "v_head_dim": HEAD_DIM}
        | {"n_group": 4, "topk_group": 2, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
        | {"num_nextn_predict_layers": 0, "moe_layer_freq": 1}
        | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
        deepseek,
    ),
    "glm-4.5": (
        "Glm4MoeForCausalLM",
        "glm4_moe",
        HEAD
        | SIGMOID
        | {"n_group": 1, "topk_group": 1, "use_qk_norm": True, "attention_bias": True}
        | {"partial_rotary_factor": 0.5, "num_nextn_predict_layers": 0},
        glm4_moe,
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        "gpt_oss",
        HEAD
        | {"num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "attention_bias": True}
        | {"sliding_window": WINDOW, "layer_types": MIXED, "swiglu_limit": 7.0}
        | {"rope_scaling": YARN | {"truncate": False}, "rope_theta": 150000.0},
        gpt_oss,
    ),
    "glm-4": (
        "Glm4ForCausalLM",
        "glm4",
        HEAD | {"partial_rotary_factor": 0.5, "attention_bias": True},
        glm4,
    ),
    "gemma-3": (
        "Gemma3ForCausalLM",
        "gemma3_text",
        HEAD
        | {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 48}
        | {"sliding_window": WINDOW, "layer_types": MIXED, "tie_word_embeddings": True}
        | {"rope_theta": 1e6, "rope_local_base_freq": 10000.0, "final_logit_softcapping": None}
        | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        gemma3,
    ),
    "phi-3": (
        "Phi3ForCausalLM",
        "phi3",
        {"original_max_position_embeddings": 32, "sliding_window": None}
        | {
            "rope_scaling": {
                "type": "longrope",
                "short_factor": divisors(HEAD_DIM // 2, 2.0),
                "long_factor": divisors(HEAD_DIM // 2, 9.0),
            }
        },
        phi3,
    ),
    "phi-4": (
        "Phi3ForCausalLM",
        "phi3",
        {"original_max_position_embeddings": 256, "sliding_window": None}
        | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True}
        | {
            "rope_scaling": {
                "type": "longrope",
                "short_factor": divisors(HEAD_DIM * 3 // 8, 2.0),
                "long_factor": divisors(HEAD_DIM * 3 // 8, 9.0),
            }
        },
        phi3,
    ),
    "llama-4": (
        "Llama4ForCausalLM",
        "llama4_text",
        HEAD
        | {"num_local_experts": EXPERTS, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}
        | {"intermediate_size": EXPERT_FEATURES, "intermediate_size_mlp": FEATURES}
        | {"no_rope_layer_interval": 2, "attention_chunk_size": 2 * WINDOW, "use_qk_norm": True},
        llama4,
    ),
    "hunyuan": (
        "HunYuanDenseV1ForCausalLM",
        "hunyuan_v1_dense",
        HEAD
        | {"attention_head_dim": HEAD_DIM, "use_qk_norm": True, "attention_bias": False}
        | {"use_cla": False, "cla_share_factor": 2, "norm_type": "rms", "num_experts": 1}
        | {"rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}},
        hunyuan,
    ),
    "ernie-4.5": ("Ernie4_5ForCausalLM", "ernie4_5", HEAD | {"use_bias": False}, llama),
    "opt": (
        "OPTForCausalLM",
        "opt",
        {"ffn_dim": FEATURES, "word_embed_proj_dim": HIDDEN, "do_layer_norm_before": True}
        | {"activation_function": "relu", "tie_word_embeddings": True},
        opt,
    ),
}
# What vLLM's CPU backend refuses, and its words about it.
NOT_ON_CPU: dict[str, tuple[str, str, Facts, str]] = {
    "qwen3-next": (
        "Qwen3NextForCausalLM",
        "qwen3_next",
        NEXT | QWEN_EXPERTS | {"shared_expert_intermediate_size": EXPERT_FEATURES},
        "CPU GDN attention requires BF16",
    ),
    "qwen3.5": ("Qwen3_5ForCausalLM", "qwen3_5_text", NEXT, "failed to be inspected"),
    "qwen3.5-moe": (
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        NEXT | QWEN_EXPERTS | {"shared_expert_intermediate_size": EXPERT_FEATURES},
        "failed to be inspected",
    ),
    "deepseek-v3.2": (
        "DeepseekV32ForCausalLM",
        "deepseek_v32",
        ARCHITECTURES["deepseek-v3"][2]
        | {"index_topk": WINDOW, "index_n_heads": 64, "index_head_dim": 128},
        "Sparse Attention is not supported on CPU",
    ),
}


def config(architecture: str, model_type: str, facts: Facts) -> Facts:
    """Return a config.json."""
    return BASE | facts | {"architectures": [architecture], "model_type": model_type}


def tensors(name: str, seed: int = 0) -> Weights:
    """Draw all tensors of one of ``ARCHITECTURES``."""
    *_, facts, layer = ARCHITECTURES[name]
    rng, offset = stream(seed, name), 1.0 if layer is gemma3 else 0.0
    prefix = "model.decoder." if layer is opt else "model."
    tied = (BASE | facts)["tie_word_embeddings"]
    size = (0.2 if layer is not gemma3 else 0.02) if tied else 1.0  # or a token follows itself
    weights = {f"{prefix}embed_tokens.weight": size * rng.standard_normal((VOCAB, HIDDEN))}
    if layer is opt:
        weights[f"{prefix}embed_positions.weight"] = rng.standard_normal(
            (BASE["max_position_embeddings"] + 2, HIDDEN)
        )
        weights |= prefixed(prefix, norms(rng, "final_layer_norm"))
        weights[f"{prefix}final_layer_norm.bias"] = bias(rng, HIDDEN)
    else:
        weights |= prefixed(prefix, norms(rng, "norm", offset=offset))
    if not tied:
        weights["lm_head.weight"] = weight(rng, VOCAB, HIDDEN)
    for i in range(LAYERS):
        weights |= prefixed(f"{prefix}layers.{i}.", layer(rng, facts, i))
    return weights


def build(folder: Path) -> dict[str, Path]:
    """Write every checkpoint below ``folder``, those of ``NOT_ON_CPU`` without weights; by name."""
    folders = {}
    for name, (architecture, model_type, facts, *_) in (ARCHITECTURES | NOT_ON_CPU).items():
        weights = dict(sorted(tensors(name).items())) if name in ARCHITECTURES else {}
        folders[name] = write(folder / name, config(architecture, model_type, facts), weights)
    return folders
