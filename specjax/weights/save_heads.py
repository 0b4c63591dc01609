"""Write drafting heads in the formats that vLLM loads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from specjax.host.files import write_atomically, write_json
from specjax.models.build import HeadConfig
from specjax.models.config import (
    WITH_LAYERS,
    BlockConfig,
    FeatureConfig,
    LstmConfig,
    MedusaConfig,
    ModelConfig,
)
from specjax.weights.names import stored_name

ARCHITECTURES = {  # and model_type
    "eagle": ("EagleLlamaForCausalLM", "llama"),
    "eagle3": ("LlamaForCausalLMEagle3", "llama"),
    "mtp": ("Qwen3MTP", "qwen3_mtp"),
    "medusa": ("MedusaModel", "medusa"),
    "mlp_speculator": ("MLPSpeculatorPreTrainedModel", "mlp_speculator"),
    "dflash": ("DFlashDraftModel", "qwen3"),
    "dspark": ("Qwen3DSparkModel", "qwen3"),
    "peagle": ("LlamaForCausalLMEagle3", "llama"),
}


def save_head(
    folder: Path,
    kind: str,
    config: HeadConfig,
    own: Mapping[str, jax.Array],
    kept: np.ndarray | None = None,
    *,
    dtype: str = "bfloat16",
) -> None:
    """Write a head's config.json and model.safetensors, each atomically.

    An MTP layer is named as MiMo's, whose checkpoints hold it beside the target; here it has a
    folder of its own.

    Args:
        folder: an existing one.
        kind: one of ``models.config.HEAD_KINDS``.
        config: of the head.
        own: its own weights, by dotted path; the others are the target's.
        kept: the token of each row of a reduced vocabulary.
        dtype: of the stored weights.

    Raises:
        ValueError: a weight is not finite.
    """
    tensors = {}
    for path, value in sorted(own.items()):
        tensors[stored_name(kind, path)] = np.asarray(value.astype(dtype))
        if not np.isfinite(np.asarray(value)).all():
            raise ValueError(f"weight {path} is not finite")
    if kept is not None and isinstance(config, WITH_LAYERS):
        tensors["d2t"] = kept.astype(np.int64) - np.arange(len(kept))
        tensors["t2d"] = np.isin(np.arange(config.block.vocab_size), kept)
    architecture, model_type = ARCHITECTURES[kind]
    if isinstance(config, FeatureConfig) and kind in ("eagle3", "peagle") and config.block.qk_norm:
        architecture, model_type = "Eagle3Qwen3ForCausalLM", "qwen3"
    named = {"architectures": [architecture], "model_type": model_type}
    write_json(folder / "config.json", {**named, **facts_of(config), "torch_dtype": dtype})
    with write_atomically(folder / "model.safetensors") as file:
        file.write(save(tensors, metadata={"format": "pt"}))


def facts_of(config: HeadConfig) -> dict[str, Any]:
    """Return a head's config.json without architecture and dtype."""
    if isinstance(config, MedusaConfig):
        return {
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "num_heads": config.num_heads,
            "num_hidden_layers": config.num_layers,
            "medusa_fc_bias": config.bias,
            "original_lm_head": config.shared_head,
        }
    if isinstance(config, BlockConfig):
        return block_head_facts(config)
    if isinstance(config, LstmConfig):
        raise ValueError("Arctic's LSTM speculator is read, and not written")
    if not isinstance(config, FeatureConfig):
        return {
            "n_predict": config.num_stages,
            "emb_dim": config.hidden_size,
            "inner_dim": config.inner_size,
            "vocab_size": config.vocab_size,
            "tie_weights": config.tied,
            "scale_input": config.scale_input,
        }
    facts = block_facts(config.block)
    if config.kind == "mtp":
        return {**facts, "num_nextn_predict_layers": 1}
    if config.kind == "eagle":
        return facts
    return {
        **facts,
        "draft_vocab_size": config.draft_vocab_size or config.block.vocab_size,
        "target_hidden_size": config.target_size,
        "eagle_aux_hidden_state_layer_ids": list(config.taps),
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        **({} if config.mask_token_id is None else {"mask_token_id": config.mask_token_id}),
    }


def block_head_facts(config: BlockConfig) -> dict[str, Any]:
    """Return the fields of a DFlash or DSpark head; vLLM numbers the tapped layers from 0."""
    layers = [tap - 1 for tap in config.taps]
    windows = {window for window in config.sliding_windows if window is not None}
    facts = {
        **block_facts(config.block),
        "draft_vocab_size": config.draft_vocab_size or config.block.vocab_size,
        "target_hidden_size": config.target_size,
        "attention_bias": config.block.qkv_bias,
        "layer_types": [
            "full_attention" if window is None else "sliding_attention"
            for window in config.sliding_windows
        ],
        "sliding_window": max(windows, default=None),
        "use_sliding_window": bool(windows),
    }
    usual = tuple(window is not None for window in config.sliding_windows)
    own = {} if config.causal == usual else {"causal": all(config.causal)}
    if config.kind == "dflash":
        own |= {"mask_token_id": config.mask_token_id, "target_layer_ids": layers}
        return {**facts, "dflash_config": own}
    return {
        **facts,
        **({"dflash_config": own} if own else {}),
        "target_layer_ids": layers,
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": config.sample_from_anchor,
        "markov_rank": config.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": config.confidence != "none",
        "confidence_head_with_markov": config.confidence == "markov",
    }


def block_facts(block: ModelConfig) -> dict[str, Any]:
    """Return the fields of a head's transformer blocks, by Hugging Face's names."""
    return {
        "vocab_size": block.vocab_size,
        "hidden_size": block.hidden_size,
        "intermediate_size": block.intermediate_size,
        "num_hidden_layers": block.num_layers,
        "num_attention_heads": block.num_heads,
        "num_key_value_heads": block.num_kv_heads,
        "head_dim": block.head_dim,
        "max_position_embeddings": block.max_position_embeddings,
        "rms_norm_eps": block.norm_eps,
        "rope_theta": block.rope.theta,
        "hidden_act": "silu",
        "tie_word_embeddings": block.tie_word_embeddings,
    }
