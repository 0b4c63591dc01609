"""What ``config.json`` may leave unsaid, and what it may not say: data for ``hf_config``."""

from typing import Any

Raw = dict[str, Any]

DTYPES = {  # vLLM's names
    "float32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
}

# What transformers assumes when config.json does not say.
LLAMA: Raw = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "num_key_value_heads": None,  # None: as many as the query heads
    "head_dim": None,  # None: hidden_size // num_attention_heads
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "sliding_window": None,
    "use_sliding_window": True,
    "max_window_layers": 0,  # the layers below it see everything
}
MISTRAL = LLAMA | {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
}
QWEN2 = LLAMA | {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
}
QWEN3 = QWEN2 | {"head_dim": 128}
DEEPSEEK = LLAMA | {
    "max_position_embeddings": 4096,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 3,
}
OPT: Raw = {
    "max_position_embeddings": 2048,
    "activation_function": "relu",
    "enable_bias": True,
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "layer_norm_elementwise_affine": True,
    "word_embed_proj_dim": None,
    "tie_word_embeddings": True,
    "sliding_window": None,
    "use_sliding_window": True,
    "max_window_layers": 0,
}
DEFAULTS: dict[str, Raw] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "MiMoForCausalLM": QWEN2,
    "DeepseekV3ForCausalLM": DEEPSEEK,
    "OPTForCausalLM": OPT,
}
MODEL_TYPES = {  # for a config.json without "architectures"
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mimo": "MiMoForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "opt": "OPTForCausalLM",
}

OFF = (None, False, 0, "", [], {})
ONE = (None, 1, 1.0)
DENSE = "use a dense model"
TEXT = "use a text-only model"
PLAIN = "use a model without it"

# Facts that change the logits and are not computed: key -> (values that switch it off, what it
# is, remedy).
REFUSED: dict[str, tuple[tuple, str, str]] = {
    **dict.fromkeys(("vision_config", "audio_config", "text_config"), (OFF, "multimodal", TEXT)),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
        (OFF, "mixture of experts", DENSE),
    ),
    **dict.fromkeys(
        ("quantization_config", "compression_config", "quantization"),
        (OFF, "quantized weights", "use the unquantized checkpoint"),
    ),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), (OFF, "latent attention", PLAIN)),
    **dict.fromkeys(("is_encoder_decoder", "add_cross_attention"), (OFF, "encoder-decoder", PLAIN)),
    **dict.fromkeys(
        ("use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm"),
        (OFF, "q/k norm outside Qwen3", PLAIN),
    ),
    **dict.fromkeys(
        ("alibi", "parallel_attn", "rope_interleave", "no_rope_layers", "attn_output_gate"),
        (OFF, "another attention", PLAIN),
    ),
    **dict.fromkeys(
        ("clip_qkv", "attn_logit_softcapping", "final_logit_softcapping", "attention_chunk_size"),
        (OFF, "clipped or chunked attention or logits", PLAIN),
    ),
    **dict.fromkeys(
        (
            *("embedding_multiplier", "residual_multiplier", "attention_multiplier"),
            *("logits_scaling", "logit_scale", "lm_head_multiplier", "key_multiplier"),
            *("attention_in_multiplier", "attention_out_multiplier", "mlp_multipliers"),
            *("scale_emb", "scale_depth", "dim_model_base", "query_pre_attn_scalar"),
        ),
        (ONE, "a scaling multiplier", PLAIN),
    ),
    "partial_rotary_factor": (ONE, "partial rotary embedding", PLAIN),
}

# What DeepSeek-V3 has of them, and the only values of its other facts that are computed.
OWN = {
    "DeepseekV3ForCausalLM": {"n_routed_experts", "q_lora_rank", "kv_lora_rank", "rope_interleave"}
}
DEEPSEEK_ONLY: dict[str, tuple] = {
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "rope_interleave": (None, True),
    "moe_layer_freq": (None, 1),
    "scoring_func": (None, "sigmoid"),
    "topk_method": (None, "noaux_tc"),
}

ROPE_KEYS = {  # what a rope dictionary may say
    *("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
    *("original_max_position_embeddings", "partial_rotary_factor"),
    *("beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
}
