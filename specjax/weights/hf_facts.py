"""Tables for ``hf_config``: the architectures, and settings that are not implemented."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Raw = dict[str, Any]

DTYPES = {  # vLLM's names
    "float32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
}

# The defaults of transformers, for what config.json leaves out.
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
    "max_window_layers": 0,  # the layers below it have full attention
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
MINISTRAL = MISTRAL
QWEN3 = QWEN2 | {"head_dim": 128}
QWEN3_MOE = QWEN2 | {
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
    "max_window_layers": 0,
}
QWEN3_NEXT = LLAMA | {
    "max_position_embeddings": 32768,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "intermediate_size": 5632,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
}
QWEN3_5 = {key: QWEN3_NEXT[key] for key in QWEN3_NEXT if "exper" not in key} | {
    "num_key_value_heads": 4,
    "intermediate_size": 12288,
}
QWEN3_5_MOE = QWEN3_NEXT | {"num_experts": 256, "num_experts_per_tok": 8}
MIXTRAL = LLAMA | {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
GLM4_MOE = LLAMA | {
    "max_position_embeddings": 131072,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "use_qk_norm": False,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
}
GPT_OSS = LLAMA | {
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
    "sliding_window": 128,
    "sliding_window_pattern": 2,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "default_theta": 150000.0,
    "default_rope": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}
GLM4 = LLAMA | {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 1.5625e-7,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}
GEMMA3 = LLAMA | {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "default_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "final_logit_softcapping": None,
}
PHI3 = LLAMA | {
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 1.0,
}
HUNYUAN = LLAMA | {"rms_norm_eps": 1e-5, "use_qk_norm": True}
ERNIE = LLAMA | {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "default_theta": 500000.0,
    "tie_word_embeddings": True,
}
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
DEEPSEEK_V32 = DEEPSEEK | {
    "max_position_embeddings": 163840,
    "index_topk": 2048,
    "index_n_heads": 64,
    "index_head_dim": 128,
}
LLAMA4 = LLAMA | {
    "max_position_embeddings": 131072,
    "vocab_size": 202048,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "default_theta": 500000.0,
    "intermediate_size": 8192,  # of an expert
    "intermediate_size_mlp": 16384,  # of a layer without experts
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "moe_layers": None,
    "interleave_moe_layer_step": 1,
    "use_qk_norm": True,
    "no_rope_layers": None,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "attn_scale": 0.1,
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

OFF = (None, False, 0, "", [], {})
ONE = (None, 1, 1.0)
DENSE = "use a dense model"
TEXT = "use a text-only model"
PLAIN = "use a model without it"

# Settings that change the logits and are not implemented: key -> (values that switch it off,
# what it is, remedy).
REFUSED: dict[str, tuple[tuple, str, str]] = {
    **dict.fromkeys(("vision_config", "audio_config", "text_config"), (OFF, "multimodal", TEXT)),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
        (OFF, "mixture of experts", DENSE),
    ),
    "quantization": (OFF, "quantized weights", "use the unquantized checkpoint"),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), (OFF, "latent attention", PLAIN)),
    **dict.fromkeys(("is_encoder_decoder", "add_cross_attention"), (OFF, "encoder-decoder", PLAIN)),
    **dict.fromkeys(
        ("use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm"),
        (OFF, "q/k norm by a flag", PLAIN),
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


@dataclass(frozen=True)
class Architecture:
    """What ``hf_config`` knows of an architecture: data from which a ``ModelConfig`` is made."""

    defaults: Raw  # transformers', for what config.json leaves out
    model_type: str  # its name in a config.json without "architectures"
    models: str = ""  # which people know by it, and what is particular, for the documentation
    facts: Raw = field(default_factory=dict)  # fields of ModelConfig that all its models have
    biases: tuple[str, ...] = ()  # fields of ModelConfig that "attention_bias" switches on
    rope: Raw = field(default_factory=dict)  # fields of Rope that all its models have
    experts: Mapping[str, str] = field(
        default_factory=dict
    )  # a field of Experts -> the key of config.json that it is
    router: Raw = field(default_factory=dict)  # fields of Experts that all its models have
    aliases: Mapping[str, str] = field(default_factory=dict)  # another name of a key -> the key
    computed: tuple[str, ...] = ()  # keys of REFUSED that are implemented here
    only: Mapping[str, tuple] = field(
        default_factory=dict
    )  # further keys, and the only values that are implemented


QKV, QKVO = ("qkv_bias",), ("qkv_bias", "output_bias")
MOE_KEYS = {
    "num_experts_per_tok": "num_experts_per_tok",
    "moe_intermediate_size": "moe_intermediate_size",
    "norm_topk_prob": "norm_topk_prob",
}
QWEN_MOE_KEYS = MOE_KEYS | {"n_routed_experts": "num_experts"}
QWEN_NEXT_KEYS = QWEN_MOE_KEYS | {"shared_size": "shared_expert_intermediate_size"}
QWEN_NEXT: Raw = {  # fields of ModelConfig
    "names": "qwen3_next",
    "norm_offset": 1.0,
    "qk_norm": True,
    "output_gate": True,
}
QWEN_NEXT_ONLY: dict[str, tuple] = {
    "mlp_bias": (None, False),
    "attn_output_gate": (None, True),
    "mamba_ssm_dtype": (None, "float32"),  # of the recurrent state
}
QWEN_NEXT_COMPUTED = ("num_experts", "partial_rotary_factor", "attn_output_gate", "mrope_section")
SHARED: Raw = {"n_shared_experts": 1, "shared_gate": True}
MIXTRAL_KEYS = {
    "n_routed_experts": "num_local_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "moe_intermediate_size": "intermediate_size",
}
SIGMOID_KEYS = MOE_KEYS | {  # DeepSeek-V3's router and its descendants'
    "n_routed_experts": "n_routed_experts",
    "n_shared_experts": "n_shared_experts",
    "n_group": "n_group",
    "topk_group": "topk_group",
    "routed_scaling_factor": "routed_scaling_factor",
}
SIGMOID: Raw = {"scores": "sigmoid", "correction_bias": True}
SIGMOID_ONLY: dict[str, tuple] = {
    "moe_layer_freq": (None, 1),
    "scoring_func": (None, "sigmoid"),
    "topk_method": (None, "noaux_tc"),
}
NO_BIAS: dict[str, tuple] = {"attention_bias": (None, False), "mlp_bias": (None, False)}
NO_MLP_BIAS: dict[str, tuple] = {"mlp_bias": (None, False)}
NO_WINDOW: dict[str, tuple] = {"use_sliding_window": (None, False)}

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture(
        LLAMA, "llama", "Llama 2 and 3, with Llama 3's RoPE scaling", biases=QKVO
    ),
    "MistralForCausalLM": Architecture(
        MISTRAL, "mistral", "Mistral 7B and later; sliding windows", only=NO_BIAS
    ),
    "MinistralForCausalLM": Architecture(
        MINISTRAL, "ministral", "Ministral 8B; layers with and without windows", only=NO_BIAS
    ),
    "MixtralForCausalLM": Architecture(
        MIXTRAL,
        "mixtral",
        "Mixtral 8x7B, 8x22B; mixture of experts",
        facts={"names": "mixtral"},
        experts=MIXTRAL_KEYS,
        computed=("num_local_experts",),
        only=NO_BIAS,
    ),
    "Qwen2ForCausalLM": Architecture(
        QWEN2,
        "qwen2",
        "Qwen2, Qwen2.5; sliding windows",
        facts={"qkv_bias": True},
        only=NO_MLP_BIAS,
    ),
    "Qwen3ForCausalLM": Architecture(
        QWEN3, "qwen3", "Qwen3 0.6B to 32B", facts={"qk_norm": True}, biases=QKVO, only=NO_MLP_BIAS
    ),
    "Qwen3MoeForCausalLM": Architecture(
        QWEN3_MOE,
        "qwen3_moe",
        "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder; mixture of experts",
        facts={"qk_norm": True},
        biases=QKVO,
        experts=QWEN_MOE_KEYS,
        aliases={"num_local_experts": "num_experts"},
        computed=("num_experts",),
        only=NO_MLP_BIAS,
    ),
    "Qwen3NextForCausalLM": Architecture(
        QWEN3_NEXT,
        "qwen3_next",
        "Qwen3-Next 80B-A3B, Qwen3-Coder-Next; gated delta nets, experts, its MTP layer",
        facts=QWEN_NEXT,
        biases=QKVO,
        experts=QWEN_NEXT_KEYS,
        router=SHARED,
        aliases={"num_local_experts": "num_experts"},
        computed=("num_experts", "partial_rotary_factor"),
        only=QWEN_NEXT_ONLY,
    ),
    "Qwen3_5ForCausalLM": Architecture(
        QWEN3_5,
        "qwen3_5_text",
        "Qwen3.5, 3.6, 3.8, text of the multimodal ones too; gated delta nets, its MTP layer",
        facts=QWEN_NEXT,
        biases=QKVO,
        computed=QWEN_NEXT_COMPUTED[1:],
        only=QWEN_NEXT_ONLY,
    ),
    "Qwen3_5MoeForCausalLM": Architecture(
        QWEN3_5_MOE,
        "qwen3_5_moe_text",
        "Qwen3.5, 3.6 with experts, text of the multimodal ones too; as above",
        facts=QWEN_NEXT,
        biases=QKVO,
        experts=QWEN_NEXT_KEYS,
        router=SHARED,
        aliases={"num_local_experts": "num_experts"},
        computed=QWEN_NEXT_COMPUTED,
        only=QWEN_NEXT_ONLY | {"norm_topk_prob": (None, True)},
    ),
    "MiMoForCausalLM": Architecture(
        QWEN2 | {"attention_bias": True},
        "mimo",
        "MiMo 7B, with its multi-token prediction layer",
        facts={"qkv_bias": True},
        only=NO_MLP_BIAS | {"attention_bias": (True,)},
    ),
    "DeepseekV3ForCausalLM": Architecture(
        DEEPSEEK,
        "deepseek_v3",
        "DeepSeek-V3, R1; latent attention, experts, YaRN, its MTP layer",
        rope={"paired": True},
        experts=SIGMOID_KEYS,
        router=SIGMOID,
        aliases={"num_local_experts": "n_routed_experts"},
        computed=("n_routed_experts", "q_lora_rank", "kv_lora_rank", "rope_interleave"),
        only=SIGMOID_ONLY | NO_BIAS | {"rope_interleave": (None, True)},
    ),
    "DeepseekV32ForCausalLM": Architecture(
        DEEPSEEK_V32,
        "deepseek_v32",
        "DeepSeek-V3.2 and V3.2-Exp; as V3, with sparse attention by a lightning indexer",
        rope={"paired": True},
        experts=SIGMOID_KEYS,
        router=SIGMOID,
        aliases={"num_local_experts": "n_routed_experts"},
        computed=("n_routed_experts", "q_lora_rank", "kv_lora_rank", "rope_interleave"),
        only=SIGMOID_ONLY | NO_BIAS | {"rope_interleave": (None, True)},
    ),
    "Glm4MoeForCausalLM": Architecture(
        GLM4_MOE,
        "glm4_moe",
        "GLM-4.5, 4.6, 4.7; experts, partial RoPE, its MTP layer",
        biases=QKV,
        experts=SIGMOID_KEYS,
        router=SIGMOID,
        aliases={"num_local_experts": "n_routed_experts"},
        computed=("n_routed_experts", "partial_rotary_factor", "use_qk_norm"),
        only=SIGMOID_ONLY | NO_MLP_BIAS,
    ),
    "GptOssForCausalLM": Architecture(
        GPT_OSS,
        "gpt_oss",
        "gpt-oss 20B, 120B; windows, sinks, experts, MXFP4",
        facts={"names": "gpt_oss", "mlp": "clipped", "sinks": True},
        biases=QKVO,
        experts=MIXTRAL_KEYS,
        router={"router_bias": True, "bias": True},
        aliases={"experts_per_token": "num_experts_per_tok"},
        computed=("num_local_experts",),
        only=NO_MLP_BIAS | {"swiglu_limit": (None, 7.0), "swiglu_alpha": (None, 1.702)},
    ),
    "Glm4ForCausalLM": Architecture(
        GLM4,
        "glm4",
        "GLM-4-0414 9B, 32B; norms on both sides, partial RoPE",
        facts={"names": "glm4", "sandwich": True},
        biases=QKV,
        rope={"paired": True},
        computed=("partial_rotary_factor",),
        only=NO_MLP_BIAS,
    ),
    "Gemma3ForCausalLM": Architecture(
        GEMMA3,
        "gemma3_text",
        "Gemma 3, text of the multimodal ones too; windows, two RoPEs",
        facts={"names": "gemma3", "norm_offset": 1.0, "sandwich": True, "qk_norm": True}
        | {"mlp": "geglu"},
        biases=QKVO,
        computed=("query_pre_attn_scalar", "final_logit_softcapping"),
        only=NO_MLP_BIAS
        | {"hidden_activation": ("gelu_pytorch_tanh",), "use_bidirectional_attention": OFF},
    ),
    "Phi3ForCausalLM": Architecture(
        PHI3,
        "phi3",
        "Phi-3, Phi-4, Phi-4-mini; LongRoPE by `max_model_len`, as vLLM",
        computed=("partial_rotary_factor",),
        only=NO_BIAS
        | {"lm_head_bias": (None, False), "full_attn_mod": ONE, "interpolate_factor": ONE},
    ),
    "HunYuanDenseV1ForCausalLM": Architecture(
        HUNYUAN,
        "hunyuan_v1_dense",
        "Hunyuan 0.5B to 7B",
        facts={"names": "hunyuan", "qk_norm_last": True},
        biases=QKVO,
        aliases={"attention_head_dim": "head_dim"},
        computed=("use_qk_norm", "num_experts"),
        only=NO_MLP_BIAS
        | {"num_experts": ONE, "use_cla": OFF, "use_mixed_mlp_moe": OFF, "norm_type": (None, "rms")}
        | {"use_rotary_pos_emb": (None, True), "position_embedding_xdrope": OFF},
    ),
    "Ernie4_5ForCausalLM": Architecture(
        ERNIE,
        "ernie4_5",
        "ERNIE-4.5-0.3B",
        rope={"paired": True},
        only=NO_BIAS | {"use_bias": (None, False)},
    ),
    "Llama4ForCausalLM": Architecture(
        LLAMA4,
        "llama4_text",
        "Llama 4 Scout and Maverick, text; chunked attention, layers without RoPE, experts",
        facts={"names": "llama4", "qk_norm_last": True, "qk_norm_weight": False},
        biases=QKVO,
        rope={"paired": True},
        experts=MIXTRAL_KEYS,
        router={"scores": "sigmoid", "norm_topk_prob": False, "weigh_inputs": True}
        | {"n_shared_experts": 1},
        computed=("num_local_experts", "use_qk_norm", "no_rope_layers", "attention_chunk_size"),
        only=NO_MLP_BIAS,
    ),
    "OPTForCausalLM": Architecture(OPT, "opt", "OPT; learned positions"),
}
WRAPPERS = {  # with a "text_config"
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
}
MODEL_TYPES = {architecture.model_type: name for name, architecture in ARCHITECTURES.items()}

ROPE_KEYS = {  # the known keys of a rope dictionary
    *("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
    *("original_max_position_embeddings", "partial_rotary_factor"),
    *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    *("short_factor", "long_factor", "alpha"),
}
