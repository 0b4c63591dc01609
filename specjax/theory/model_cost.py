"""The cost of a model from its config.json: dense, mixture of experts, latent attention.

Counts the matrices of a gated decoder (Llama, Qwen, Mistral, Mixtral, DeepSeek) and its LM head;
norms, biases and the table of input embeddings, of which a pass reads a row per token, are left
out. Latent attention: DeepSeek-V2 (arXiv 2405.04434), with the up-projections absorbed.
"""

from collections.abc import Mapping
from typing import Any

from specjax.theory.roofline import ModelCost

BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8_e4m3fn": 1.0}
QUANTIZED = {"fp8": 1.0, "awq": 0.5, "gptq": 0.5, "gptq_marlin": 0.5, "mxfp4": 0.53125}
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def model_cost(
    config: Mapping[str, Any], name: str | None = None, kv_bytes_per_value: float = 2.0
) -> ModelCost:
    """Return the cost of the model that a config.json describes.

    The counts are those of the configs' own architectures, named at the top of this file.
    Args:
        config: the object in the file; of a multimodal model its ``text_config`` counts.
        name: for sentences; by default ``model_type``.
        kv_bytes_per_value: 1 for an 8-bit cache.

    Raises:
        ValueError: a size is missing, or a quantization is not known.
    """
    config = config.get("text_config") or config
    for key in NEEDED:
        if not isinstance(config.get(key), int):
            raise ValueError(f"the config has no {key}, which its cost depends on")
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    attention, kv_values, flops = attention_cost(config)
    dense, experts, count, taken, shared = feed_forward(config)
    moe_layers = layers - dense if count > 1 else 0
    plain_layers = layers - moe_layers
    inner = config.get("intermediate_size") or 0
    if plain_layers and not inner:
        raise ValueError("the config has no intermediate_size, which its cost depends on")
    routed = moe_layers * count * 3.0 * width * experts
    total = layers * attention + plain_layers * 3.0 * width * inner + routed
    total += moe_layers * (3.0 * width * experts * shared + width * count)
    total += float(width * config["vocab_size"])
    return ModelCost(
        name or str(config.get("model_type", "model")),
        total,
        bytes_per_param(config),
        kv_bytes_per_value * layers * kv_values,
        layers * flops,
        routed,
        count,
        taken,
    )


def attention_cost(config: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return a layer's parameters, its cached values per token, and operations per context."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if config.get("kv_lora_rank"):
        latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
        nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
        rank = config.get("q_lora_rank")
        query = heads * (nope + rope)
        params = rank * (width + query) if rank else width * query
        params += width * (latent + rope) + latent * heads * (nope + value) + heads * value * width
        return float(params), float(latent + rope), 2.0 * heads * (2 * latent + rope)
    dim = config.get("head_dim") or width // heads
    groups = config.get("num_key_value_heads") or heads
    return (
        float(2 * width * dim * (heads + groups)),
        2.0 * groups * dim,
        4.0 * heads * dim,
    )


def feed_forward(config: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    """Return dense layers, an expert's width, how many there are, taken by a token, and shared."""
    count = next(
        (
            config[k]
            for k in ("num_experts", "num_local_experts", "n_routed_experts")
            if config.get(k)
        ),
        1,
    )
    if count == 1:
        return config["num_hidden_layers"], 0, 1, 1, 0
    taken = config.get("num_experts_per_tok")
    if not taken:
        raise ValueError("the config has experts, but no num_experts_per_tok")
    width = config.get("moe_intermediate_size") or config.get("intermediate_size") or 0
    first = config.get("first_k_dense_replace") or len(config.get("mlp_only_layers") or ())
    return first, width, count, taken, config.get("n_shared_experts") or 0


def bytes_per_param(config: Mapping[str, Any]) -> float:
    """Return the bytes of a weight."""
    quantization = config.get("quantization_config")
    if quantization:
        method = str(quantization.get("quant_method"))
        if method in ("awq", "gptq", "gptq_marlin") and quantization.get("bits", 4) != 4:
            return float(quantization["bits"]) / 8
        if method not in QUANTIZED:
            known = ", ".join(QUANTIZED)
            raise ValueError(f"the bytes of quant_method {method!r} are not known; valid: {known}")
        return QUANTIZED[method]
    return BYTES.get(str(config.get("torch_dtype") or config.get("dtype")), 2.0)
