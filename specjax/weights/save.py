"""Write a decoder as a Hugging Face folder, which transformers and vLLM can load."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from specjax.core.types import PyTree
from specjax.host.files import write_atomically, write_json
from specjax.models.config import ModelConfig, Rope
from specjax.weights.names import table, tensor_name


def hf_config(config: ModelConfig, *, dtype: str, end: int) -> dict[str, Any]:
    """Return the config.json of a Qwen3 decoder.

    Args:
        config: of the decoder.
        dtype: of the stored weights.
        end: the id of the end-of-text token.

    Raises:
        ValueError: it has another architecture.
    """
    plain = ModelConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        norm_eps=config.norm_eps,
        rope=Rope(theta=config.rope.theta),
        tie_word_embeddings=config.tie_word_embeddings,
        qk_norm=True,
        dtype=config.dtype,
    )
    if config != plain:
        raise ValueError(f"only Qwen3's architecture is written, got {config}")
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": end,
        "torch_dtype": dtype,
    }


def named_tensors(config: ModelConfig, params: PyTree) -> dict[str, jax.Array]:
    """Return the weights by Hugging Face's names, in sorted order."""
    names = table(config)
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return dict(sorted((tensor_name(tuple(k.key for k in path), names), x) for path, x in leaves))


def save_model(
    folder: Path, config: ModelConfig, params: PyTree, *, dtype: str = "bfloat16", end: int = 0
) -> None:
    """Write config.json, generation_config.json and model.safetensors, each atomically.

    The tokenizer is not written; a tied ``lm_head`` is left out.

    Args:
        folder: an existing one.
        config: of the decoder.
        params: its weights.
        dtype: of the stored weights.
        end: the id of the end-of-text token.

    Raises:
        ValueError: the architecture is not Qwen3's, or a weight is not finite.
    """
    described = hf_config(config, dtype=dtype, end=end)
    tensors = {}
    for name, value in named_tensors(config, params).items():
        tensors[name] = np.asarray(value.astype(dtype))
        if not np.isfinite(tensors[name].astype(np.float32)).all():
            raise ValueError(f"weight {name} is not finite")
    write_json(folder / "config.json", described)
    generation = {"bos_token_id": None, "eos_token_id": end, "pad_token_id": end}
    write_json(folder / "generation_config.json", generation)
    with write_atomically(folder / "model.safetensors") as file:
        file.write(save(tensors, metadata={"format": "pt"}))
