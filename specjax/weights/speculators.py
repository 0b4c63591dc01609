"""The ``speculators`` format of drafting heads (RedHatAI/*-speculator.*), read as vLLM reads it.

Its config.json has the block's facts in ``transformer_layer_config``, the target in
``speculators_config.verifier``, and counts tapped layers as we do (0: the embeddings). Weights are
stored under the names of vLLM's own layout.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specjax.host.files import read_json_object

Raw = Mapping[str, Any]
KINDS = ("eagle3", "peagle", "dflash", "dspark")
EAGLES = ("eagle3", "peagle")
VERSION = "0.9.0"  # of the package speculators, whose layout is written
EAGLE3 = {"llama": "Eagle3LlamaForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM"}
RENAMED = {  # P-EAGLE's names, which vLLM refuses outside the speculators format
    "PEagleDraftModel": EAGLE3["llama"],
    "PeagleLlamaForCausalLM": EAGLE3["llama"],
    "PeagleQwen3ForCausalLM": EAGLE3["qwen3"],
}
CLASSES = {
    "eagle3": ("Eagle3DraftModel", "Eagle3SpeculatorConfig"),
    "peagle": ("PEagleDraftModel", "PEagleSpeculatorConfig"),
    "dflash": ("DFlashDraftModel", "DFlashSpeculatorConfig"),
    "dspark": ("DSparkDraftModel", "DSparkSpeculatorConfig"),
}
OWN = {  # the fields of a head that are not its block's, and EAGLE-3's defaults in vLLM's reader
    "eagle3": {
        "norm_before_residual": True, "norm_before_fc": False, "fc_norm": False,
        "norm_output": False,
    },
    "peagle": {"norm_before_residual": False, "norm_before_fc": False},
    "dflash": {"block_size": None},
    "dspark": dict.fromkeys(
        ("mask_token_id", "markov_rank", "markov_head_type", "block_size",
         "enable_confidence_head", "confidence_head_with_markov")
    ),
}  # fmt: skip


class Proposal(NamedTuple):
    """How a speculators folder says that it wants to be served."""

    method: str  # of vLLM: "eagle3", "dflash" or "dspark"
    num_speculative_tokens: int
    parallel_drafting: bool
    verifier: str | None  # the target


def is_speculators(raw: Raw) -> bool:
    """Return whether a config.json is in the speculators format."""
    return "speculators_model_type" in raw


def read_facts(folder: Path) -> Raw:
    """Return a head's config.json as vLLM's own layout has it.

    Raises:
        ValueError: it is a speculators config of an unknown kind, or one that lacks a field.
    """
    raw = read_json_object(folder / "config.json")
    return translate(raw) if is_speculators(raw) else as_vllm_reads(raw)


def as_vllm_reads(raw: Raw) -> Raw:
    """Return a head's own config with the names, and in the places, that vLLM knows.

    SpecForge writes DSpark's fields inside ``dflash_config``, where vLLM does not look, and an
    architecture of P-EAGLE that vLLM refuses.
    """
    named = list(raw.get("architectures") or ())
    if any(one in RENAMED for one in named):
        raw = {**raw, "architectures": [RENAMED.get(one, one) for one in named]}
    own = raw.get("dflash_config")
    if not own or not any("DSpark" in one for one in named):
        return raw
    known = (*OWN["dspark"], "target_layer_ids", "sample_from_anchor")
    inside = {key: own[key] for key in known if key in own}
    rest = {key: value for key, value in own.items() if key not in known}
    outside = {key: value for key, value in raw.items() if key != "dflash_config"}
    return inside | outside | ({"dflash_config": rest} if rest else {})


def translate(raw: Raw) -> Raw:
    """Return a speculators config in vLLM's own layout, by vLLM's rules and with its defaults.

    Raises:
        ValueError: the kind is unknown, or a field is missing.
    """
    kind = kind_of(raw)
    block = raw.get("transformer_layer_config")
    if not isinstance(block, dict):
        raise ValueError(f"a speculators config needs transformer_layer_config, got {block!r}")
    layers = raw.get("eagle_aux_hidden_state_layer_ids" if kind in EAGLES else TAPS)
    own = {key: raw.get(key, default) for key, default in OWN[kind].items()}
    facts = {
        **block,
        "draft_vocab_size": raw.get("draft_vocab_size"),
        **{key: value for key, value in own.items() if value is not None},
    }
    if raw.get("target_hidden_size") is not None:
        facts["target_hidden_size"] = raw["target_hidden_size"]
    if layers:
        facts["eagle_aux_hidden_state_layer_ids"] = layers
    if kind in EAGLES:
        model_type = block.get("model_type", "llama")
        if model_type not in EAGLE3:
            raise ValueError(
                f"a speculators head of model_type {model_type!r} is not implemented: known are "
                f"{', '.join(EAGLE3)}"
            )
        facts["architectures"] = [EAGLE3[model_type]]
        return facts | ({"pard_token": raw.get("mask_token_id")} if kind == "peagle" else {})
    if not layers:
        raise ValueError(f"a speculators {kind} config needs {TAPS}, the layers that it taps")
    if kind == "dspark":
        anchor = bool(raw.get("sample_from_anchor", False))
        return facts | {"architectures": ["Qwen3DSparkModel"], "sample_from_anchor": anchor}
    return facts | {"architectures": ["DFlashDraftModel"], "dflash_config": dflash_config(raw)}


TAPS = "aux_hidden_state_layer_ids"


def dflash_config(raw: Raw) -> Raw:
    """Return what vLLM makes of a speculators DFlash head's own fields.

    ``sliding_window_non_causal`` false makes all layers causal, which is a surprise where one has
    full attention: these are trained in both directions.
    """
    causal = not raw.get("sliding_window_non_causal", True)
    block = raw["transformer_layer_config"]
    number = block.get("num_hidden_layers", 0)
    kinds = block.get("layer_types") or ["full_attention"] * number
    if causal and "full_attention" in kinds:
        warnings.warn(
            "sliding_window_non_causal=false makes the layers with full attention causal too, as "
            "in vLLM, though they are trained to see the whole block: drafts are worse, the text "
            "is the same. Set it to true if the head was trained so.",
            stacklevel=2,
        )
    return {
        "mask_token_id": raw.get("mask_token_id"),
        "sample_from_anchor": raw.get("sample_from_anchor", False),
        "causal": causal,
    }


def kind_of(raw: Raw) -> str:
    """Return the kind of a speculators head. Raises ValueError if it is not implemented."""
    kind = raw.get("speculators_model_type")
    if kind not in KINDS:
        raise ValueError(
            f"speculators_model_type {kind!r} is not implemented: known are {', '.join(KINDS)}"
        )
    return str(kind)


def read_proposal(raw: Raw) -> Proposal:
    """Return how a speculators config wants to be served: by its first proposal method.

    Raises:
        ValueError: it has none, or its kind is not implemented.
    """
    kind, config = kind_of(raw), raw.get("speculators_config") or {}
    methods = config.get("proposal_methods") or [{}]
    number = methods[0].get("speculative_tokens")
    if not isinstance(number, int) or number < 1:
        raise ValueError(
            "a speculators config needs speculators_config.proposal_methods with "
            f"speculative_tokens, got {methods!r}"
        )
    method = "eagle3" if kind == "peagle" else kind
    verifier = (config.get("verifier") or {}).get("name_or_path")
    return Proposal(method, number, kind == "peagle", verifier)


def to_speculators(
    raw: Raw, kind: str, num_speculative_tokens: int, verifier: str | None
) -> dict[str, Any]:
    """Return vLLM's own config of a head in the speculators format: ``translate``'s reverse.

    Args:
        raw: the config.json.
        kind: one of ``KINDS``.
        num_speculative_tokens: K of the proposal method.
        verifier: the target that ``LLM(model=FOLDER)`` loads.

    Raises:
        ValueError: the kind has no such format.
    """
    if kind not in KINDS:
        raise ValueError(f"the speculators format has no {kind!r} heads, only {', '.join(KINDS)}")
    own, eagle = raw.get("dflash_config") or {}, kind in EAGLES
    if raw.get("kv_lora_rank") is not None:
        raise ValueError("the speculators format has no heads with latent attention (MLA)")
    for key, value in own.items():
        if key not in CARRIED and value is not None and value != IDLE.get(key, False):
            raise ValueError(
                f"the speculators format has no place for dflash_config's {key}={value!r}: keep "
                "the head in vLLM's own layout."
            )
    moved = {*OWN[kind], *NOT_BLOCKS, "dflash_config"}
    block = {key: value for key, value in raw.items() if key not in moved}
    qwen3 = not eagle or "Qwen3" in " ".join(raw.get("architectures") or ())
    block["model_type"] = "qwen3" if qwen3 else "llama"
    taps = raw.get("eagle_aux_hidden_state_layer_ids")
    if not taps and not eagle:
        layers = own.get("target_layer_ids") or raw.get("target_layer_ids") or ()
        taps = [layer + 1 for layer in layers]
    facts = {
        **{key: raw.get(key, default if eagle else None) for key, default in OWN[kind].items()},
        "draft_vocab_size": raw.get("draft_vocab_size") or raw.get("vocab_size"),
        "target_hidden_size": raw.get("target_hidden_size"),
        ("eagle_aux_hidden_state_layer_ids" if eagle else TAPS): taps,
    }
    if eagle and "norm_before_residual" not in raw:
        facts["norm_before_residual"] = False  # vLLM's default in its own layout
    if kind != "eagle3":
        facts["mask_token_id"] = mask_of(raw)
    if not eagle:
        block |= sliding(raw, own)
        facts["block_size"] = raw.get("block_size") or num_speculative_tokens + (kind == "dflash")
    if kind == "dflash":
        facts["sliding_window_non_causal"] = not is_causal(raw, own)
    if kind == "dspark":
        facts["sample_from_anchor"] = raw.get("sample_from_anchor", True)
        if own.get("causal") is not None or own.get("use_swa"):
            block["is_causal"] = is_causal(raw, own)
    proposal = {"proposal_type": "greedy", "speculative_tokens": num_speculative_tokens}
    return {
        "architectures": [CLASSES[kind][0]],
        "speculators_model_type": kind,
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "transformer_layer_config": block,
        **{key: value for key, value in facts.items() if value is not None},
        "tie_word_embeddings": False,
    }


CARRIED = ("mask_token_id", "target_layer_ids", "causal", "use_swa", "swa_window_size")
IDLE = {"use_aux_hidden_state": True, "attention_value_scale": 1.0}  # as if absent; others: False
MASKS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
NOT_BLOCKS = {  # fields of vLLM's own layout that go to the top, or away
    *("architectures", "draft_vocab_size", "target_hidden_size", "target_layer_ids"),
    *("eagle_aux_hidden_state_layer_ids", "sample_from_anchor", "torch_dtype", "model_type"),
    *MASKS,
}


def mask_of(raw: Raw) -> Any:
    """Return the mask token of a head that drafts in parallel: vLLM's keys, the first found."""
    own = raw.get("dflash_config") or {}
    found = (own.get("mask_token_id"), *map(raw.get, MASKS))
    return next((value for value in found if value is not None), None)


def sliding(raw: Raw, own: Raw) -> dict[str, Any]:
    """Return a block's fields for what ``dflash_config`` says of sliding windows: vLLM's rule.

    ``use_swa`` gives a window to all layers if no layer type does.
    """
    facts: dict[str, Any] = {}
    if "swa_window_size" in own:
        facts["sliding_window"] = own["swa_window_size"]
    if own.get("use_swa") and "sliding_attention" not in (raw.get("layer_types") or ()):
        facts["layer_types"] = ["sliding_attention"] * raw.get("num_hidden_layers", 0)
    return facts


def is_causal(raw: Raw, own: Raw) -> bool:
    """Return whether the layers of a DFlash or DSpark head are causal.

    Raises:
        ValueError: some are and some are not, which the speculators format cannot say.
    """
    given = raw.get("is_causal") if raw.get("is_causal") is not None else own.get("causal")
    if given is not None:
        return bool(given)
    slides = {kind == "sliding_attention" for kind in raw.get("layer_types") or ["full_attention"]}
    if len(slides) > 1:
        raise ValueError(
            "the speculators format cannot say that sliding layers are causal and full ones are "
            "not: set dflash_config.causal, or keep vLLM's own layout."
        )
    return slides.pop()
