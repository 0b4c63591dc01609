"""Tiny checkpoints of every architecture, made by transformers, with no tensor left at rest.

Fresh models have zero biases, unit norms and logits near zero: half of all mistakes would
not show. Here every tensor is random and the logits spread by at least one.
"""

import functools
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers

ROWS, LENGTH, VOCAB = 2, 40, 97

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-2,  # far from the default, so that a default shows
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {  # original context 16: most of the 40 positions lie beyond it
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "beta_fast": 1.0,
    "beta_slow": 0.25,
    "original_max_position_embeddings": 16,
}
DEEPSEEK = SIZES | {  # one dense layer, then one with experts
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 28,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
NEXT = {  # recurrent, attention, recurrent
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 3,
}
OPT = {key: value for key, value in SIZES.items() if key not in ("intermediate_size",)} | {
    "ffn_dim": 80,
    "word_embed_proj_dim": 48,
}


def _theta(value):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": value}}


ALPHA = {"alpha": 8.0, "factor": 1.0}
VARIANTS = {
    "llama2": ("LlamaForCausalLM", SIZES | _theta(10000.0)),
    "llama3": ("LlamaForCausalLM", GROUPED | {"rope_parameters": LLAMA3}),
    "llama-biased": (
        "LlamaForCausalLM",
        GROUPED | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "mistral": (
        "MistralForCausalLM",
        GROUPED | _theta(1e6) | {"head_dim": 16, "sliding_window": None},
    ),
    "qwen2": ("Qwen2ForCausalLM", GROUPED | _theta(1e6)),
    "qwen2-tied": ("Qwen2ForCausalLM", GROUPED | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", GROUPED | {"head_dim": 16}),
    "qwen3-biased": (
        "Qwen3ForCausalLM",
        GROUPED | _theta(1e6) | {"head_dim": 16, "attention_bias": True},
    ),
    "opt": ("OPTForCausalLM", OPT),
    "opt-untied": ("OPTForCausalLM", OPT | {"tie_word_embeddings": False}),
    "opt-unbiased": ("OPTForCausalLM", OPT | {"enable_bias": False}),
    "qwen3-yarn": ("Qwen3ForCausalLM", GROUPED | {"head_dim": 16, "rope_parameters": YARN}),
    "mistral-window": ("MistralForCausalLM", GROUPED | {"head_dim": 16, "sliding_window": 11}),
    "ministral": (
        "MinistralForCausalLM",
        GROUPED
        | {"head_dim": 16, "sliding_window": 9}
        | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
    "mixtral": ("MixtralForCausalLM", GROUPED | {"num_local_experts": 8, "num_experts_per_tok": 3}),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        GROUPED
        | {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 28}
        | {"num_hidden_layers": 3, "mlp_only_layers": [1], "norm_topk_prob": True},
    ),
    "glm4-moe": (
        "Glm4MoeForCausalLM",
        GROUPED
        | {"head_dim": 16, "use_qk_norm": True, "attention_bias": True, "n_shared_experts": 2}
        | {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 28}
        | {"routed_scaling_factor": 1.7},
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        GROUPED
        | {"head_dim": 16, "sliding_window": 9, "num_local_experts": 8, "num_experts_per_tok": 3}
        | {"intermediate_size": 24, "rope_parameters": YARN | {"truncate": False}},
    ),
    "glm4": ("Glm4ForCausalLM", GROUPED | {"head_dim": 16}),
    "gemma3": (
        "Gemma3ForCausalLM",
        GROUPED
        | {"head_dim": 16, "sliding_window": 9, "query_pre_attn_scalar": 24}
        | {"layer_types": ["sliding_attention", "full_attention"], "final_logit_softcapping": 5.0}
        | {"tie_word_embeddings": False}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
    ),
    "phi3": (
        "Phi3ForCausalLM",
        GROUPED
        | {"original_max_position_embeddings": 16, "sliding_window": None}
        | {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 100.0,
                "short_factor": [1.0, 1.1, 1.2, 1.5],
                "long_factor": [1.0, 2.0, 3.0, 5.0],
                "partial_rotary_factor": 0.67,
            },
        },
    ),
    "hunyuan": (
        "HunYuanDenseV1ForCausalLM",
        GROUPED
        | {"head_dim": 16, "attention_bias": True}
        | {
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 100.0,
                "alpha": 8.0,
                "factor": 1.0,
            }
        },
    ),
    "ernie4_5": ("Ernie4_5ForCausalLM", GROUPED | {"head_dim": 16}),
    "llama4": (
        "Llama4ForCausalLM",
        GROUPED
        | {"head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 1}
        | {"num_hidden_layers": 4, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 72}
        | {"no_rope_layer_interval": 2, "attention_chunk_size": 9, "floor_scale": 6}
        | {"attn_scale": 0.7, "rope_parameters": LLAMA3},
    ),
    "qwen3-next": (
        "Qwen3NextForCausalLM",
        GROUPED
        | NEXT
        | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 28}
        | {"shared_expert_intermediate_size": 36, "norm_topk_prob": True, "mlp_only_layers": [2]},
    ),
    "qwen3-5": ("Qwen3_5ForCausalLM", GROUPED | NEXT | {"attention_bias": True}),
    "qwen3-5-moe": (
        "Qwen3_5MoeForCausalLM",
        {key: value for key, value in (GROUPED | NEXT).items() if key != "intermediate_size"}
        | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 28}
        | {"shared_expert_intermediate_size": 36},
    ),
    "deepseek": ("DeepseekV3ForCausalLM", DEEPSEEK),
    "deepseek-yarn": (
        "DeepseekV3ForCausalLM",
        DEEPSEEK
        | {"q_lora_rank": None, "norm_topk_prob": False, "n_group": 1, "topk_group": 1}
        | {"rope_parameters": YARN | {"mscale": 0.8, "mscale_all_dim": 0.5}},
    ),
    "deepseek-v32": (
        "DeepseekV32ForCausalLM",
        DEEPSEEK | {"index_topk": 12, "index_n_heads": 16, "index_head_dim": 16},
    ),
}


def tokens() -> np.ndarray:
    """Return the token ids every variant reads, [ROWS, LENGTH]."""
    return np.random.default_rng(0).integers(3, VOCAB, (ROWS, LENGTH)).astype(np.int32)


def build(variant: str, **changes) -> transformers.PreTrainedModel:
    """Return a float32 model whose every tensor is random."""
    architecture, facts = VARIANTS[variant]
    facts = facts | changes
    kind = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = kind(kind.config_class(**facts, attn_implementation="eager")).eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.parameters():
            noise = torch.randn(value.shape, generator=draw)
            scale = 0.5 if value.ndim == 1 else 1.5 * value.shape[1] ** -0.5
            value.copy_(noise * scale + (0.7 if value.ndim == 1 else 0.0))
        for name, value in model.named_buffers():  # a router's bias; the others are RoPE's
            if name.endswith("e_score_correction_bias"):
                value.copy_(0.3 * torch.randn(value.shape, generator=draw))
    for name, value in model.named_parameters():
        assert value.std() > 0.05, f"{name} is not random"
    return model


def logits(model: transformers.PreTrainedModel) -> np.ndarray:
    """Return transformers' own float32 logits, [ROWS, LENGTH, VOCAB]."""
    with torch.no_grad():
        said = model(torch.from_numpy(tokens()).long()).logits.numpy()
    assert said.std() >= 1, f"logits are too flat to tell mistakes: {said.std()}"
    return said


def save(model: transformers.PreTrainedModel, folder: Path, **options) -> Path:
    """Write the model as transformers does."""
    model.save_pretrained(folder, **options)
    return folder


@functools.cache
def reference(variant: str) -> tuple[transformers.PreTrainedModel, np.ndarray]:
    """Return a variant's model and its logits, built once."""
    model = build(variant)
    return model, logits(model)


def edit_config(folder: Path, **changes) -> None:
    """Overwrite keys of a saved config.json; ``None`` stays as null."""
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | changes))
