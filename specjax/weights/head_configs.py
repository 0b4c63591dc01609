"""Read the config.json of drafting heads in the formats that vLLM loads."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specjax.models.build import HeadConfig
from specjax.models.config import (
    WITH_LAYERS,
    BlockConfig,
    FeatureConfig,
    LstmConfig,
    MedusaConfig,
    ModelConfig,
    SpeculatorConfig,
)
from specjax.weights.hf_config import parse_config, text_config
from specjax.weights.mask_embedding import has_mask_embedding
from specjax.weights.speculators import MASKS, mask_of, read_facts, sliding

Raw = Mapping[str, Any]
EAGLE = {"LlamaForCausalLM": "LlamaForCausalLM", "EagleLlamaForCausalLM": "LlamaForCausalLM"}
EAGLE3 = {
    "LlamaForCausalLM": "LlamaForCausalLM",
    "LlamaForCausalLMEagle3": "LlamaForCausalLM",
    "Eagle3LlamaForCausalLM": "LlamaForCausalLM",
    "Qwen3ForCausalLM": "Qwen3ForCausalLM",
    "Eagle3Qwen3ForCausalLM": "Qwen3ForCausalLM",
    "Eagle3DeepseekV2ForCausalLM": "DeepseekV3ForCausalLM",  # with latent attention (MLA)
    "Eagle3DeepseekV3ForCausalLM": "DeepseekV3ForCausalLM",
}
ARCTIC_LSTM = ("ArcticLSTMSpeculatorPreTrainedModel", "MLPVariantSpeculatorPreTrainedModel")
BLOCK_HEADS = (
    *("DFlashDraftModel", "DFlashQwen3ForCausalLM", "Qwen3DFlashModel"),
    *("DSparkDraftModel", "Qwen3DSparkModel"),
)
ATTENTION = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")
NOT_IN_BLOCKS = {  # what no layer here has, and the values that leave it off
    "attention_sink_bias": (None, False),
    "add_swa_attention_sink_bias": (None, False),
    "attention_value_scale": (None, 1, 1.0),
    "is_neox_style": (None, True),
}
SIZES = {  # of an MTP layer that is no copy of the target's layers
    "intermediate_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
}


def read_head_config(folder: Path, method: str, target: ModelConfig) -> HeadConfig:
    """Read a drafting head's config.json, and check that it belongs to this target.

    Args:
        folder: of the head; for MTP layers, possibly the target's own.
        method: one of ``models.config.HEAD_KINDS``.
        target: the target's config.

    Raises:
        ValueError: there is no config, or it is of another target or not implemented; the message
            names the file, the value and the remedy.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a folder of a drafting head: no config.json in it")
    raw = read_facts(folder)
    try:
        config = PARSERS[method](raw, target)
        if isinstance(config, BlockConfig) and has_mask_embedding(folder):
            config = dataclasses.replace(config, mask_embedding=True)
        check_belongs(config, target)
    except ValueError as error:
        raise ValueError(f"{folder} does not serve as method={method!r}: {error}") from None
    return config


def check_belongs(config: HeadConfig, target: ModelConfig) -> None:
    """Raise ValueError where a head's sizes are those of another target."""
    hidden_size = config.target_size if isinstance(config, WITH_LAYERS) else config.hidden_size
    for name, ours, theirs in (
        ("vocab_size", vocabulary(config), target.vocab_size),
        ("hidden_size", hidden_size, target.hidden_size),
    ):
        if ours != theirs:
            raise ValueError(
                f"it was made for a target whose {name} is {ours}, this target's is {theirs}: "
                "use a head that was trained for this target"
            )


def vocabulary(config: HeadConfig) -> int:
    """Return the size of the target's vocabulary according to a head's config."""
    return config.block.vocab_size if isinstance(config, WITH_LAYERS) else config.vocab_size


def parse_eagle(raw: Raw, target: ModelConfig) -> FeatureConfig:
    """Read an EAGLE head's config, with the decoder's facts at the top or under "model"."""
    block = parse_block(raw, EAGLE, target)
    return FeatureConfig(kind="eagle", block=block, target_size=block.hidden_size)


def usual_taps(num_layers: int) -> tuple[int, ...]:
    """Return the layers that EAGLE-3 taps by default, those of vLLM."""
    return tuple(sorted({2, num_layers // 2, num_layers - 3}))


def parse_eagle3(raw: Raw, target: ModelConfig) -> FeatureConfig:
    """Read an EAGLE-3 head's config."""
    own = raw.get("eagle_config") or {}
    if own.get("use_aux_hidden_state") is False:
        raise ValueError("a head without tapped layers (use_aux_hidden_state false) is no EAGLE-3")
    block = dataclasses.replace(parse_block(raw, EAGLE3, target), experts=None)
    if block.latent is not None and raw.get("norm_before_fc"):
        raise ValueError("norm_before_fc is not of a head with latent attention: vLLM ignores it")
    ids = raw.get("eagle_aux_hidden_state_layer_ids")
    ids = ids or own.get("eagle_aux_hidden_state_layer_ids") or usual_taps(target.num_layers)
    taps = check_taps(ids, target)
    if raw.get("num_aux_hidden_states") not in (None, len(taps)):
        count = raw["num_aux_hidden_states"]
        raise ValueError(f"num_aux_hidden_states is {count}, the tapped layers are {list(taps)}")
    rows = raw.get("draft_vocab_size")
    return FeatureConfig(
        kind="eagle3",
        block=block,
        target_size=raw.get("target_hidden_size") or block.hidden_size,
        taps=taps,
        draft_vocab_size=None if rows == block.vocab_size else rows,
        norm_before_residual=bool(raw.get("norm_before_residual")),
        norm_before_fc=bool(own.get("norm_before_fc", raw.get("norm_before_fc"))),
        fc_norm=bool(raw.get("fc_norm")),
        norm_output=bool(raw.get("norm_output")),
    )


def check_taps(ids: Any, target: ModelConfig) -> tuple[int, ...]:
    """Return tapped layers in ascending order. Raises ValueError if the target lacks one."""
    depth = target.num_layers
    good = isinstance(ids, list | tuple) and all(
        isinstance(i, int) and 0 <= i <= depth for i in ids
    )
    if not ids or not good:
        raise ValueError(f"it taps layers {ids} of a target that has {depth}")
    return tuple(sorted(set(ids)))


def parse_peagle(raw: Raw, target: ModelConfig) -> FeatureConfig:
    """Read the config of a P-EAGLE head: EAGLE-3's, with a mask token."""
    return dataclasses.replace(parse_eagle3(raw, target), mask_token_id=read_mask(raw))


def read_mask(raw: Raw) -> int:
    """Return the mask token of a model that drafts in parallel: vLLM's keys, the first found.

    Raises:
        ValueError: it has none.
    """
    mask = mask_of(raw)
    if not isinstance(mask, int):
        raise ValueError(
            f"parallel drafting needs a mask token, and its config.json has none of "
            f"{', '.join(MASKS)}: draft without parallel_drafting, or use a model trained for it"
        )
    return mask


def parse_mtp(raw: Raw, target: ModelConfig) -> FeatureConfig:
    """Read the config of a multi-token prediction layer, which is in the target's config.json.

    MiMo's reads the last hidden states before the final norm; DeepSeek's those after it, and is a
    mixture of experts if a further layer of the target would be one. Qwen3-Next's (and Qwen3.5's)
    is its last layer of attention once more. A layer in a folder of its own may have other sizes
    than the target.
    """
    if target.recurrent:
        if text_config(raw).get("mtp_num_hidden_layers", 1) == 0:
            raise ValueError("it has no MTP layers (mtp_num_hidden_layers in its config.json is 0)")
        attends = [i for i in range(target.num_layers) if target.kind(i).delta is None]
        return FeatureConfig(
            kind="mtp",
            block=target.block(attends[-1]),
            target_size=target.hidden_size,
            mask_first=False,
        )
    if not raw.get("num_nextn_predict_layers"):
        raise ValueError("it has no MTP layers (num_nextn_predict_layers in its config.json)")
    deepseek = target.experts is not None
    own = {} if deepseek else {name: number(raw, key) for name, key in SIZES.items() if key in raw}
    return FeatureConfig(
        kind="mtp",
        block=target.block(target.num_layers - 1, **own),
        target_size=target.hidden_size,
        hidden_first=not deepseek,
        taps=() if deepseek else (target.num_layers,),
    )


def parse_medusa(raw: Raw, target: ModelConfig) -> MedusaConfig:
    """Read a Medusa config: vLLM's, or the authors', which has the numbers of heads and layers."""
    vocab_size = raw.get("vocab_size", target.vocab_size)
    given = raw.get("truncated_vocab_size") is not None
    rows = number(raw, "truncated_vocab_size") if given else vocab_size
    if rows > vocab_size:
        raise ValueError(f"truncated_vocab_size={rows} is more than vocab_size={vocab_size}")
    return MedusaConfig(
        num_heads=number(raw, "num_heads", "medusa_num_heads"),
        num_layers=number(raw, "num_hidden_layers", "medusa_num_layers"),
        hidden_size=raw.get("hidden_size", target.hidden_size),
        vocab_size=vocab_size,
        bias=bool(raw.get("medusa_fc_bias")),
        shared_head=bool(raw.get("original_lm_head")),
        draft_vocab_size=None if rows == vocab_size else rows,
        dtype=target.dtype,
    )


def parse_mlp_speculator(raw: Raw, target: ModelConfig) -> SpeculatorConfig | LstmConfig:
    """Read the config of an IBM / FMS accelerator, or of one of Arctic's speculators."""
    if (raw.get("architectures") or [""])[0] in ARCTIC_LSTM:
        return parse_arctic_lstm(raw, target)
    hidden_size = number(raw, "emb_dim")
    return SpeculatorConfig(
        num_stages=number(raw, "n_predict"),
        hidden_size=hidden_size,
        inner_size=raw.get("inner_dim") or hidden_size,
        vocab_size=number(raw, "vocab_size"),
        tied=bool(raw.get("tie_weights")),
        scale_input=bool(raw.get("scale_input")),
        dtype=target.dtype,
    )


def parse_arctic_lstm(raw: Raw, target: ModelConfig) -> LstmConfig:
    """Read the config of Arctic's LSTM speculator, whose sizes are written as text.

    What Arctic Inference itself cannot run, or nobody has published, is refused by name.
    """
    for key, wanted in (("method", "sum_lstm"), ("tie_weights", True), ("tie_lstm_embs", True)):
        if raw.get(key) != wanted:
            raise ValueError(
                f"{key}={raw.get(key)!r} of Arctic's speculator is not implemented: use one with "
                f"{key}={wanted!r}"
            )
    sizes = {key: str(raw.get(key)) for key in ("inner_dim", "emb_dim", "proj_dim")}
    if len(set(sizes.values())) > 1 or not sizes["inner_dim"].isdigit():
        raise ValueError(
            f"an LSTM has one size for its state, its gates and its tokens, got {sizes}"
        )
    n_predict = number(raw, "n_predict")
    return LstmConfig(
        num_stages=number({"num_lookahead_tokens": n_predict} | dict(raw), "num_lookahead_tokens"),
        n_predict=n_predict,
        hidden_size=number(raw, "input_hidden_dim"),
        inner_size=number({"inner_dim": int(sizes["inner_dim"])}, "inner_dim"),
        vocab_size=number(raw, "vocab_size"),
        scale_input=bool(raw.get("scale_input")),
        dtype=target.dtype,
    )


def parse_dflash(raw: Raw, target: ModelConfig) -> BlockConfig:
    """Read a DFlash head's config: z-lab's, SpecForge's, or a translated speculators one.

    ``target_layer_ids`` number layers from 0, a tap is what follows one: i is tap i + 1.
    """
    own = raw.get("dflash_config") or {}
    if own.get("sample_from_anchor"):
        raise ValueError("sample_from_anchor is DSpark's, vLLM does not draft DFlash so either")
    if own.get("mask_token_id") is None:
        raise ValueError("config.json lacks dflash_config.mask_token_id")
    return parse_layers(raw, own, target, kind="dflash", mask_token_id=own["mask_token_id"])


def parse_dspark(raw: Raw, target: ModelConfig) -> BlockConfig:
    """Read a DSpark head's config."""
    own = raw.get("dflash_config") or {}
    if raw.get("markov_head_type", "vanilla") != "vanilla":
        raise ValueError(
            f"markov_head_type={raw['markov_head_type']!r} is not implemented: use 'vanilla'"
        )
    read = "markov" if raw.get("confidence_head_with_markov") else "hidden"
    if raw.get("mask_token_id") is None:
        raise ValueError("config.json lacks mask_token_id")
    return parse_layers(
        raw,
        own,
        target,
        kind="dspark",
        mask_token_id=raw["mask_token_id"],
        sample_from_anchor=bool(raw.get("sample_from_anchor", True)),
        markov_rank=raw.get("markov_rank") or 0,
        confidence=read if raw.get("enable_confidence_head") else "none",
    )


def parse_layers(raw: Raw, own: Raw, target: ModelConfig, **facts: Any) -> BlockConfig:
    """Return a block head's config: ``facts``, its layers, and their attention."""
    if own.get("use_aux_hidden_state", raw.get("use_aux_hidden_state")) is False:
        raise ValueError("a head without tapped layers (use_aux_hidden_state false) is no DFlash")
    for key, off in NOT_IN_BLOCKS.items():
        value = own.get(key, raw.get(key))
        if value not in off:
            raise ValueError(f"{key}={value!r} is not implemented: use a head without it")
    named = (raw.get("architectures") or ["DFlashDraftModel"])[0]
    if named not in BLOCK_HEADS:
        raise ValueError(f"unknown architecture {named!r}: known are {', '.join(BLOCK_HEADS)}")
    plain = {key: value for key, value in raw.items() if key not in ATTENTION}
    if "rope_theta" not in (plain.get("rope_parameters") or plain):
        plain["rope_theta"] = 1e6  # vLLM's default for these heads
    block = parse_config({**plain, "architectures": ["Qwen3ForCausalLM"]}, target.dtype)
    block = dataclasses.replace(
        block, joined=target.joined, cache_dtype=target.cache_dtype, tie_word_embeddings=False
    )
    taps = raw.get("eagle_aux_hidden_state_layer_ids")
    if not taps:
        layers = own.get("target_layer_ids") or raw.get("target_layer_ids")
        if not isinstance(layers, list):
            raise ValueError("config.json lacks target_layer_ids, the layers that it taps")
        taps = [layer + 1 for layer in layers]
    rows = raw.get("draft_vocab_size")
    causal, windows = layer_attention(raw, own, block.num_layers)
    return BlockConfig(
        block=block,
        target_size=raw.get("target_hidden_size") or block.hidden_size,
        taps=check_taps(taps, target),
        causal=causal,
        sliding_windows=windows,
        draft_vocab_size=None if rows == block.vocab_size else rows,
        **facts,
    )


def layer_attention(
    raw: Raw, own: Raw, number: int
) -> tuple[tuple[bool, ...], tuple[int | None, ...]]:
    """Return whether each layer is causal, and its sliding window: vLLM's rules.

    Causality is, first that is given: ``is_causal``, ``dflash_config.causal``, and that of sliding
    layers by their own types.
    """
    kinds = raw.get("layer_types") or ["full_attention"] * number
    if len(kinds) != number or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise ValueError(f"layer_types={kinds} does not describe {number} layers")
    given = raw.get("is_causal") if raw.get("is_causal") is not None else own.get("causal")
    by_type = [kind == "sliding_attention" for kind in kinds]
    causal = tuple(by_type if given is None else [bool(given)] * number)
    said = {**raw, "layer_types": kinds, **sliding(raw, own)}
    slides = [kind == "sliding_attention" for kind in said["layer_types"]]
    window = said.get("sliding_window")
    if any(slides) and not isinstance(window, int):
        raise ValueError(
            "sliding attention needs dflash_config.swa_window_size or sliding_window, got "
            f"{window!r}"
        )
    return causal, tuple(window if slide else None for slide in slides)


PARSERS = {
    "eagle": parse_eagle,
    "eagle3": parse_eagle3,
    "mtp": parse_mtp,
    "medusa": parse_medusa,
    "mlp_speculator": parse_mlp_speculator,
    "peagle": parse_peagle,
    "dflash": parse_dflash,
    "dspark": parse_dspark,
}


def parse_block(raw: Raw, known: Mapping[str, str], target: ModelConfig) -> ModelConfig:
    """Return the config of a head's transformer blocks, in the target's dtype."""
    inner = raw.get("model")
    raw = {**(inner if isinstance(inner, dict) else {}), **raw}
    named = raw.get("architectures") or ["LlamaForCausalLM"]
    if named[0] not in known:
        raise ValueError(f"unknown architecture {named}: known are {', '.join(known)}")
    block = parse_config({**raw, "architectures": [known[named[0]]]}, target.dtype)
    return dataclasses.replace(block, joined=target.joined, cache_dtype=target.cache_dtype)


def number(raw: Raw, *keys: str) -> int:
    """Return the first of the named numbers that is given, at least 1."""
    value = next((raw[key] for key in keys if raw.get(key) is not None), None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"config.json: {keys[0]} must be at least 1, got {value!r}")
    return value
