"""Write a decoder as a Hugging Face folder, which transformers and vLLM can load."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from specjax.core.types import PyTree
from specjax.host.files import read_json_object, write_atomically, write_json
from specjax.models.config import ModelConfig, Rope
from specjax.weights.hf_config import text_config
from specjax.weights.load import SINGLE, check_headers
from specjax.weights.names import table, tensor_name

MTP_LAYERS = {"num_nextn_predict_layers", "mtp_num_hidden_layers"}  # in config.json


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
    tensors = {
        name: stored(name, value, dtype) for name, value in named_tensors(config, params).items()
    }
    write_json(folder / "config.json", described)
    generation = {"bos_token_id": None, "eos_token_id": end, "pad_token_id": end}
    write_json(folder / "generation_config.json", generation)
    write_tensors(folder, tensors)


def save_as(
    folder: Path, source: Path, config: ModelConfig, params: PyTree, *, dtype: str = "bfloat16"
) -> None:
    """Write config.json and model.safetensors as those of the checkpoint ``source``.

    Tensors have its names and its layout, so that transformers and vLLM load any architecture
    that specjax does; quantized matrices become ordinary ones. What the decoder does not read
    (MTP layers, a multimodal model's towers) is left out, and config.json then says so. The
    tokenizer is not written.

    Args:
        folder: the one to write to; made if it is not there.
        source: a Hugging Face checkpoint, from which ``config`` was read.
        config: of the decoder.
        params: its weights, of the shapes ``models.build.shapes``.
        dtype: of the stored weights.

    Raises:
        ValueError: ``source`` is damaged, or a weight is not finite.
    """
    sources, wanted = check_headers(source, config)
    tensors: dict[str, np.ndarray] = {}
    for path, (_, parts) in wanted.items():
        value: Any = params
        for key in path:
            value = value[key]
        value, first = stored(".".join(map(str, path)), value, dtype), 0
        for part in parts:
            shape = sources[part.name].shape
            whole = tensors.setdefault(part.name, np.zeros(shape, value.dtype))
            sizes = part.shape(shape)
            one = len(sizes) < value.ndim  # of a stack
            piece = value[first] if one else value[first : first + sizes[0]]
            first += 1 if one else sizes[0]
            region = part.locate(tuple(slice(0, size) for size in sizes))
            whole[region] = piece.swapaxes(-1, -2) if part.transpose else piece
    described = dict(text_config(read_json_object(source / "config.json")))
    described.pop("quantization_config", None)
    described |= dict.fromkeys(MTP_LAYERS & described.keys(), 0)
    described["torch_dtype" if "torch_dtype" in described else "dtype"] = dtype
    write_json(folder / "config.json", described)
    write_tensors(folder, tensors)


def stored(name: str, value: jax.Array, dtype: str) -> np.ndarray:
    """Return a weight in a dtype. Raises ValueError, with its name, if it is not finite there."""
    converted = np.asarray(value.astype(dtype))
    if not np.isfinite(converted.astype(np.float32)).all():
        raise ValueError(f"weight {name} is not finite")
    return converted


def write_tensors(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write model.safetensors atomically."""
    with write_atomically(folder / SINGLE) as file:
        file.write(save(tensors, metadata={"format": "pt"}))
