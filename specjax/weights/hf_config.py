"""Read a Hugging Face ``config.json``, refusing by name every fact we do not compute.

A fact that is ignored gives fluent, wrong text, so whatever changes the logits is either a
field of ``ModelConfig`` or an error with the value and a remedy. Nothing is allocated here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from specjax.config import Experts, Latent, Llama3Scaling, ModelConfig, Yarn
from specjax.files import read_json_object
from specjax.weights.hf_facts import (
    DEEPSEEK_ONLY,
    DEFAULTS,
    DTYPES,
    MODEL_TYPES,
    ONE,
    OWN,
    PLAIN,
    REFUSED,
    ROPE_KEYS,
    TEXT,
    Raw,
)


def read_config(
    folder: str | Path, dtype: str = "auto", max_model_len: int | None = None
) -> tuple[ModelConfig, Raw]:
    """Read ``folder/config.json``: the facts we compute with, and the file as it stands.

    Raises:
        ValueError: there is no such file, it is not JSON, or ``parse_config`` refuses it.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a Hugging Face model folder: no config.json in it")
    raw = read_json_object(path)
    return parse_config(raw, dtype, max_model_len), raw


def parse_config(
    raw: Mapping[str, Any], dtype: str = "auto", max_model_len: int | None = None
) -> ModelConfig:
    """Turn a config dictionary of either transformers generation into a ``ModelConfig``.

    ``dtype`` is "auto" or one of vLLM's names; "auto" is float32 on a CPU and otherwise the
    checkpoint's own. A sliding window that ``max_model_len`` never reaches is not in use;
    whether ``max_model_len`` fits ``max_position_embeddings`` is the caller's to check.

    Raises:
        ValueError: a missing or ill-typed value, an unknown architecture, or a fact that is
            not implemented.
    """
    architecture = _find_architecture(raw)
    for key, (harmless, what, remedy) in REFUSED.items():
        if key in raw and raw[key] not in harmless and key not in OWN.get(str(architecture), ()):
            _refuse(key, raw[key], what, remedy)
    if architecture is None:
        named = raw.get("architectures") or f"model_type {raw.get('model_type')!r}"
        raise ValueError(f"unknown architecture {named}: known are {', '.join(DEFAULTS)}")
    facts = DEFAULTS[architecture] | dict(raw)
    _refuse_sliding_window(facts, max_model_len)
    sizes: Raw = {
        "vocab_size": _number(facts, "vocab_size"),
        "hidden_size": _number(facts, "hidden_size"),
        "num_layers": _number(facts, "num_hidden_layers"),
        "num_heads": _number(facts, "num_attention_heads"),
        "max_position_embeddings": _number(facts, "max_position_embeddings"),
        "tie_word_embeddings": _flag(facts, "tie_word_embeddings"),
        "dtype": choose_dtype(dtype, raw),
    }
    own = FACTS.get(architecture, _llama_facts)
    return ModelConfig(**sizes, **own(facts, architecture))


def choose_dtype(dtype: str, raw: Mapping[str, Any]) -> str:
    """Return the compute dtype: the one asked for, or for "auto" what suits the device."""
    if dtype == "auto":
        stored = str(raw.get("dtype") or raw.get("torch_dtype") or "float32")
        stored = DTYPES.get(stored.removeprefix("torch."), "float32")
        return "float32" if jax.default_backend() == "cpu" else stored
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: use one of {', '.join(['auto', *DTYPES])}")
    return DTYPES[dtype]


def _llama_facts(facts: Raw, architecture: str) -> Raw:
    """Return what Llama's descendants add: grouped heads, RMSNorm, RoPE, SwiGLU."""
    qwen2 = architecture in ("Qwen2ForCausalLM", "MiMoForCausalLM")
    llama = architecture == "LlamaForCausalLM"
    _refuse_other_than_swiglu(facts)
    attention_bias, mlp_bias = _flag(facts, "attention_bias"), _flag(facts, "mlp_bias")
    if attention_bias and architecture == "MistralForCausalLM":
        _refuse("attention_bias", True, f"no part of {architecture}", PLAIN)
    if mlp_bias and not llama:
        _refuse("mlp_bias", True, f"no part of {architecture}", PLAIN)
    heads = _number(facts, "num_attention_heads")
    theta, scaling = _rope(facts)
    return {
        "intermediate_size": _number(facts, "intermediate_size"),
        "num_kv_heads": _number(facts, "num_key_value_heads", heads),
        "head_dim": _number(facts, "head_dim", _number(facts, "hidden_size") // max(heads, 1)),
        "norm_eps": _number(facts, "rms_norm_eps", kind=float),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "qkv_bias": qwen2 or attention_bias,
        "output_bias": attention_bias and not qwen2,
        "mlp_bias": mlp_bias,
        "qk_norm": architecture == "Qwen3ForCausalLM",
    }


def _deepseek_facts(facts: Raw, architecture: str) -> Raw:
    """Return what DeepSeek-V3 has: latent attention and a mixture of experts."""
    _refuse_other_than_swiglu(facts)
    for key, known in DEEPSEEK_ONLY.items():
        if facts.get(key) not in known:
            _refuse(key, facts[key], f"no part of {architecture}", PLAIN)
    heads = _number(facts, "num_attention_heads")
    if _number(facts, "num_key_value_heads", heads) != heads:
        value = facts["num_key_value_heads"]
        _refuse("num_key_value_heads", value, "all heads share the latent", f"set it to {heads}")
    theta, scaling = _rope(facts)
    sizes = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rank = None if facts["q_lora_rank"] is None else _number(facts, "q_lora_rank")
    latent = Latent(q_lora_rank=rank, **{name: _number(facts, name) for name in sizes})
    counts = (
        *("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"),
        *("n_group", "topk_group", "first_k_dense_replace"),
    )
    experts = Experts(
        norm_topk_prob=_flag(facts, "norm_topk_prob"),
        routed_scaling_factor=_number(facts, "routed_scaling_factor", kind=float),
        **{name: _number(facts, name) for name in counts},
    )
    return {
        "intermediate_size": _number(facts, "intermediate_size"),
        "num_kv_heads": 1,
        "head_dim": latent.qk_rope_head_dim,
        "norm_eps": _number(facts, "rms_norm_eps", kind=float),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "latent": latent,
        "experts": experts,
    }


def _opt_facts(facts: Raw, architecture: str) -> Raw:
    """Return what OPT adds: learned positions, LayerNorm, ReLU, biases everywhere."""
    hidden, heads = _number(facts, "hidden_size"), _number(facts, "num_attention_heads")
    wanted = {
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "layer_norm_elementwise_affine": True,
        "word_embed_proj_dim": hidden,
    }
    for key, value in wanted.items():
        if facts[key] != value and not (key == "word_embed_proj_dim" and facts[key] is None):
            _refuse(key, facts[key], f"not {value!r}", f"use a model with {key} {value!r}")
    if heads < 1 or hidden % heads:
        raise ValueError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    bias = _flag(facts, "enable_bias")
    return {
        "intermediate_size": _number(facts, "ffn_dim"),
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "norm": "layer",
        "norm_eps": 1e-5,
        "positions": "learned",
        "position_offset": 2,
        "mlp": "relu",
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": bias,
    }


FACTS = {"OPTForCausalLM": _opt_facts, "DeepseekV3ForCausalLM": _deepseek_facts}


def _find_architecture(raw: Mapping[str, Any]) -> str | None:
    named = raw.get("architectures") or [MODEL_TYPES.get(str(raw.get("model_type")))]
    named = [named] if isinstance(named, str) else list(named)
    return next((name for name in named if name in DEFAULTS), None)


def _rope(facts: Raw) -> tuple[float, Llama3Scaling | Yarn | None]:
    """Return theta and scaling from ``rope_parameters`` or ``rope_theta`` + ``rope_scaling``."""
    rope: Raw = {}
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(facts.get(key) or {}, dict):
            raise ValueError(f"config.json: {key} must be an object, got {facts[key]!r}")
        rope |= facts.get(key) or {}
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if rope.get("mrope_section") is not None or kind == "mrope":
        _refuse("mrope_section", rope.get("mrope_section"), "M-RoPE, multimodal", TEXT)
    if kind not in ("default", "llama3", "yarn"):
        remedy = "use a model with rope_type default, llama3 or yarn, or its base without scaling"
        _refuse("rope_type", kind, "another RoPE scaling", remedy)
    for key, value in rope.items():
        if isinstance(value, dict):
            _refuse(f"rope_parameters.{key}", value, "RoPE per layer type", PLAIN)
        if key not in ROPE_KEYS and value is not None:
            _refuse(f"rope_parameters.{key}", value, "an unknown fact of RoPE", PLAIN)
    if rope.get("partial_rotary_factor") not in ONE:
        value = rope["partial_rotary_factor"]
        _refuse("partial_rotary_factor", value, "partial rotary embedding", PLAIN)
    theta = _number(rope, "rope_theta", facts.get("rope_theta", 10000.0), kind=float)
    if facts.get("rope_theta", theta) != theta:
        said = f"{facts['rope_theta']} and {theta}"
        raise ValueError(f"config.json gives rope_theta twice, {said}: keep the right one")
    if kind == "default":
        return theta, None
    original = facts.get("original_max_position_embeddings")
    original = original or rope.get("original_max_position_embeddings")
    rope["original_max_position_embeddings"] = original or facts["max_position_embeddings"]
    original = _number(rope, "original_max_position_embeddings")
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        values = {name: _number(rope, name, kind=float) for name in names}
        return theta, Llama3Scaling(**values, original_max_position_embeddings=original)
    if bool(rope.get("mscale")) != bool(rope.get("mscale_all_dim")):
        raise ValueError("config.json: YaRN's mscale and mscale_all_dim go together, got one")
    values = {"factor": _number(rope, "factor", kind=float)}
    for name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
        if rope.get(name):  # 0 is as good as nothing
            values[name] = _number(rope, name, kind=float)
    return theta, Yarn(**values, original_max_position_embeddings=original)


def _refuse_other_than_swiglu(facts: Raw) -> None:
    if facts["hidden_act"] not in ("silu", "swish"):
        _refuse("hidden_act", facts["hidden_act"], "not SwiGLU", "use a model with silu")


def _refuse_sliding_window(facts: Raw, max_model_len: int | None) -> None:
    layers, window = facts.get("layer_types"), facts["sliding_window"]
    strange = sorted(set(layers or ()) - {"full_attention", "sliding_attention"})
    if strange:
        _refuse("layer_types", strange, "another attention", PLAIN)
    if layers:
        used = "sliding_attention" in layers
    else:
        full = _number(facts, "max_window_layers", 0) >= _number(facts, "num_hidden_layers")
        used = window is not None and _flag(facts, "use_sliding_window") and not full
    window = None if window is None else _number(facts, "sliding_window")
    if used and not (max_model_len is not None and window and max_model_len <= window):
        remedy = f"pass max_model_len <= {window}" if window else PLAIN
        _refuse("sliding_window", window, "sliding-window attention", remedy)


def _number(
    facts: Mapping[str, Any], key: str, default: Any = None, kind: type[int] | type[float] = int
) -> Any:
    value = default if facts.get(key) is None else facts[key]
    if value is None:
        raise ValueError(f"config.json lacks {key}")
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise ValueError(f"config.json: {key} must be a number, got {value!r}")
    return kind(value)


def _flag(facts: Mapping[str, Any], key: str) -> bool:
    if not isinstance(facts[key], bool):
        raise ValueError(f"config.json: {key} must be true or false, got {facts[key]!r}")
    return facts[key]


def _refuse(key: str, value: Any, what: str, remedy: str) -> None:
    raise ValueError(f"config.json: {key} = {value!r} is not implemented ({what}); {remedy}")
