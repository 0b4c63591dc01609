"""Read a Hugging Face ``config.json``, and raise for every setting that is not implemented.

A setting that is ignored gives fluent, wrong text: all that change the logits are either fields
of ``ModelConfig``, or an error with the value and a remedy. Nothing is allocated here.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from specjax.host.files import read_json_object
from specjax.models.config import (
    AttentionKind,
    Delta,
    Experts,
    Indexer,
    Latent,
    LinearScaling,
    Llama3Scaling,
    LongRope,
    ModelConfig,
    QueryScale,
    Rope,
    Yarn,
)
from specjax.weights.hf_facts import (
    ARCHITECTURES,
    DTYPES,
    MODEL_TYPES,
    ONE,
    PLAIN,
    REFUSED,
    ROPE_KEYS,
    TEXT,
    WRAPPERS,
    Architecture,
    Raw,
)
from specjax.weights.quantization import parse_quantization

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"  # of a layer
CHUNKED = "chunked_attention"


def read_config(
    folder: str | Path, dtype: str = "auto", max_model_len: int | None = None
) -> tuple[ModelConfig, Raw]:
    """Return ``folder/config.json`` as a ``ModelConfig``, and as the dictionary it is.

    Args:
        folder: a Hugging Face model folder.
        dtype: see ``parse_config``.
        max_model_len: see ``parse_config``.

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
    """Return the ``ModelConfig`` of a config dictionary of transformers 4 or 5.

    Args:
        raw: the content of config.json.
        dtype: "auto" or one of vLLM's names; "auto" is float32 on a CPU and otherwise the
            checkpoint's own.
        max_model_len: a sliding window is allowed if texts stay within it. Whether it fits
            ``max_position_embeddings`` is not checked here.

    Raises:
        ValueError: a value is missing or of the wrong type, the architecture is unknown, or a
            setting is not implemented.
    """
    raw = text_config(raw)
    name = _find_architecture(raw)
    own = None if name is None else ARCHITECTURES[name]
    computed = () if own is None else own.computed
    raw = dict(raw) if own is None else _renamed(raw, own.aliases)
    for key, (harmless, what, remedy) in REFUSED.items():
        if key in raw and raw[key] not in harmless and key not in computed:
            _refuse(key, raw[key], what, remedy)
    if name is None or own is None:
        named = raw.get("architectures") or f"model_type {raw.get('model_type')!r}"
        raise ValueError(f"unknown architecture {named}: known are {', '.join(ARCHITECTURES)}")
    parse_quantization(raw)
    facts = own.defaults | raw
    for key, known in own.only.items():
        if facts.get(key) not in known:
            _refuse(key, facts[key], f"no part of {name}", PLAIN)
    sizes: Raw = {
        "vocab_size": _number(facts, "vocab_size"),
        "hidden_size": _number(facts, "hidden_size"),
        "num_layers": _number(facts, "num_hidden_layers"),
        "num_heads": _number(facts, "num_attention_heads"),
        "max_position_embeddings": _number(facts, "max_position_embeddings"),
        "tie_word_embeddings": _flag(facts, "tie_word_embeddings"),
        "dtype": choose_dtype(dtype, raw),
    }
    own_facts = FACTS.get(name, _decoder_facts)
    return ModelConfig(**sizes, **own_facts(facts, own, max_model_len), **own.facts)


def architectures_table() -> str:
    """Return the architectures that load, as a Markdown table."""
    names = {name: [name] for name in ARCHITECTURES}
    for outer, inner in WRAPPERS.items():
        names[inner].append(outer)
    lines = ["| `architectures` in `config.json` | models |", "| --- | --- |"]
    for name, own in ARCHITECTURES.items():
        lines.append(f"| {', '.join(f'`{one}`' for one in names[name])} | {own.models} |")
    return "\n".join(lines)


def choose_dtype(dtype: str, raw: Mapping[str, Any]) -> str:
    """Return the compute dtype: ``dtype``, or for "auto" the device's or the checkpoint's."""
    if dtype == "auto":
        stored = str(raw.get("dtype") or raw.get("torch_dtype") or "float32")
        stored = DTYPES.get(stored.removeprefix("torch."), "float32")
        return "float32" if jax.default_backend() == "cpu" else stored
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: use one of {', '.join(['auto', *DTYPES])}")
    return DTYPES[dtype]


def text_config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of a multimodal model's language model; any other as it is."""
    named = raw.get("architectures") or []
    inner = raw.get("text_config")
    wrapped = next((WRAPPERS[name] for name in named if name in WRAPPERS), None)
    if wrapped is None or not isinstance(inner, dict):
        return raw
    outer = ("tie_word_embeddings", "dtype", "torch_dtype", "quantization_config", "eos_token_id")
    shared = {key: raw[key] for key in outer if key in raw}
    return shared | inner | {"architectures": [wrapped]}


def _renamed(raw: Mapping[str, Any], aliases: Mapping[str, str]) -> Raw:
    """Return config.json with one name for each fact; both names must agree."""
    found: Raw = {}
    for key, value in raw.items():
        name = aliases.get(key, key)
        if found.setdefault(name, value) is not value and found[name] != value:  # NaN != NaN
            raise ValueError(f"config.json: {key} = {value!r}, but {name} = {found[name]!r}")
    return found


def _decoder_facts(facts: Raw, own: Architecture, max_model_len: int | None) -> Raw:
    """Return the fields of Llama and its descendants: grouped heads, RMSNorm, RoPE, a gated MLP."""
    _refuse_other_than_swiglu(facts)
    heads = _number(facts, "num_attention_heads")
    head_dim = _number(facts, "head_dim", _number(facts, "hidden_size") // max(heads, 1))
    ropes = _ropes(facts, own, head_dim, max_model_len)
    found: Raw = {
        "intermediate_size": _number(facts, "intermediate_size"),
        "num_kv_heads": _number(facts, "num_key_value_heads", heads),
        "head_dim": head_dim,
        "norm_eps": _norm_eps(facts),
        "rope": ropes[FULL],
        "layers": _layers(facts, ropes, max_model_len, _delta(facts, own)),
        "experts": _experts(facts, own),
    }
    if own.biases and _flag(facts, "attention_bias"):
        found |= dict.fromkeys(own.biases, True)
    if "mlp_bias" not in own.only:
        found["mlp_bias"] = _flag(facts, "mlp_bias")
    if "use_qk_norm" in own.defaults:
        found["qk_norm"] = _flag(facts, "use_qk_norm")
    if "query_pre_attn_scalar" in own.defaults:
        found["attention_scale"] = _number(facts, "query_pre_attn_scalar", kind=float) ** -0.5
        found["embed_scale"] = _number(facts, "hidden_size") ** 0.5
    cap = "final_logit_softcapping"
    if cap in own.computed and facts.get(cap) is not None:
        found["logit_cap"] = _number(facts, cap, kind=float)
    return found


def _experts(facts: Raw, own: Architecture) -> Experts | None:
    """Return the mixture of experts, and which layers are mixtures."""
    if not own.experts:
        return None
    given: Raw = {}
    for field, key in own.experts.items():
        if field == "norm_topk_prob":
            given[field] = _flag(facts, key)
        else:
            given[field] = _number(facts, key, kind=float if "factor" in field else int)
    count = _number(facts, "num_hidden_layers")
    dense = _list(facts, "mlp_only_layers")
    first, step = (
        _number(facts, key, default)
        for key, default in (("first_k_dense_replace", 0), ("decoder_sparse_step", 1))
    )
    mixed = [i >= first and i not in dense and (i + 1) % max(step, 1) == 0 for i in range(count)]
    return Experts(**given, **own.router, layers=() if all(mixed) else tuple(mixed))


def _layers(
    facts: Raw, ropes: Mapping[str, Rope], max_model_len: int | None, delta: Delta | None
) -> tuple[AttentionKind, ...]:
    """Return what each layer sees, or () if all layers are alike: no text reaches a window."""
    types, window = _list(facts, "layer_types"), facts["sliding_window"]
    count = _number(facts, "num_hidden_layers")
    if not types and "sliding_window_pattern" in facts:
        every = _number(facts, "sliding_window_pattern")
        types = [FULL if (i + 1) % every == 0 else SLIDING for i in range(count)]
    if not types and delta is not None:
        every = _number(facts, "full_attention_interval")
        types = [LINEAR if (i + 1) % max(every, 1) else FULL for i in range(count)]
    strange = [kind for kind in types if kind not in (FULL, SLIDING if delta is None else LINEAR)]
    if strange:
        _refuse("layer_types", strange, "another attention", PLAIN)
    if types and len(types) != count:
        raise ValueError(f"config.json: layer_types names {len(types)} of {count} layers")
    if delta is not None:
        full, own = AttentionKind(rope=ropes[FULL]), AttentionKind(delta=delta)
        return tuple(own if kind == LINEAR else full for kind in types)
    if types:
        sliding = [kind == SLIDING for kind in types]
    else:
        used = window is not None and _flag(facts, "use_sliding_window")
        sliding = [used and i >= _number(facts, "max_window_layers", 0) for i in range(count)]
    if not any(sliding):
        return ()
    window = _number(facts, "sliding_window")
    if max_model_len is not None and max_model_len <= window:
        window = None
    full = AttentionKind(rope=ropes[FULL])
    local = AttentionKind(window=window, rope=ropes[SLIDING])
    return () if local == full else tuple(local if one else full for one in sliding)


def _delta(facts: Raw, own: Architecture) -> Delta | None:
    """Return the gated delta net of layers that are ``linear_attention``."""
    if "linear_num_key_heads" not in own.defaults:
        return None
    return Delta(
        num_key_heads=_number(facts, "linear_num_key_heads"),
        num_value_heads=_number(facts, "linear_num_value_heads"),
        key_head_dim=_number(facts, "linear_key_head_dim"),
        value_head_dim=_number(facts, "linear_value_head_dim"),
        conv_kernel=_number(facts, "linear_conv_kernel_dim"),
        merged=own.model_type == "qwen3_next",
    )


def _deepseek_facts(facts: Raw, own: Architecture, max_model_len: int | None) -> Raw:
    """Return the fields of DeepSeek-V3: latent attention and a mixture of experts."""
    heads = _number(facts, "num_attention_heads")
    if _number(facts, "num_key_value_heads", heads) != heads:
        value = facts["num_key_value_heads"]
        _refuse("num_key_value_heads", value, "all heads share the latent", f"set it to {heads}")
    sizes = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rank = None if facts["q_lora_rank"] is None else _number(facts, "q_lora_rank")
    latent = Latent(q_lora_rank=rank, **{name: _number(facts, name) for name in sizes})
    one = {"num_key_value_heads": 1, "head_dim": latent.qk_rope_head_dim}
    found = _decoder_facts(facts | one, own, max_model_len)
    if found["layers"]:
        _refuse("sliding_window", facts["sliding_window"], "windows of latents", PLAIN)
    return found | {"latent": latent}


def _deepseek_v32_facts(facts: Raw, own: Architecture, max_model_len: int | None) -> Raw:
    """Return the fields of DeepSeek-V3.2: those of V3, and the indexer of its sparse attention."""
    count, first = (_number(facts, key) for key in ("num_hidden_layers", "first_k_dense_replace"))
    for key, expected in (
        ("layer_types", ["indexed_attention"] * count),
        ("mlp_layer_types", ["dense"] * min(first, count) + ["sparse"] * (count - first)),
    ):
        if facts.get(key) not in (None, expected):
            _refuse(key, facts[key], f"not {expected}", PLAIN)
    found = _deepseek_facts(facts | {"layer_types": None}, own, max_model_len)
    indexer = Indexer(
        num_heads=_number(facts, "index_n_heads"),
        head_dim=_number(facts, "index_head_dim"),
        top_k=_number(facts, "index_topk"),
    )
    return found | {"latent": dataclasses.replace(found["latent"], indexer=indexer)}


def _llama4_facts(facts: Raw, own: Architecture, max_model_len: int | None) -> Raw:
    """Return the fields of Llama 4: layers with RoPE and chunks, layers without, and experts."""
    count = _number(facts, "num_hidden_layers")
    step = _number(facts, "interleave_moe_layer_step")
    plain = facts | {"layer_types": None, "decoder_sparse_step": step}
    found = _decoder_facts(plain, own, max_model_len)
    found["intermediate_size"] = _number(facts, "intermediate_size_mlp")
    if facts["moe_layers"] is not None:
        chosen = _list(facts, "moe_layers")
        mixed = tuple(i in chosen for i in range(count))
        experts = dataclasses.replace(found["experts"], layers=() if all(mixed) else mixed)
        found["experts"] = experts if any(mixed) else None
    interval = max(_number(facts, "no_rope_layer_interval"), 1)
    turned = _list(facts, "no_rope_layers") or [(i + 1) % interval for i in range(count)]
    chunk, longest = facts["attention_chunk_size"], max_model_len or math.inf
    types = _list(facts, "layer_types")
    types = types or [CHUNKED if one and chunk is not None else FULL for one in turned]
    if len(types) != count or len(turned) < count:
        both = f"{len(types)} and {len(turned)}"
        raise ValueError(
            f"config.json: layer_types and no_rope_layers name {both} of {count} layers"
        )
    strange = [kind for kind in types if kind not in (FULL, CHUNKED)]
    if strange:
        _refuse("layer_types", strange, "another attention", PLAIN)
    window = _number(facts, "attention_chunk_size") if CHUNKED in types else 0
    scale, every = _number(facts, "attn_scale", kind=float), _number(facts, "floor_scale")
    scaled = _flag(facts, "attn_temperature_tuning") and longest >= every
    tuned = QueryScale(scale=scale, every=every) if scaled else None

    def kind(layer: int) -> AttentionKind:
        chunked = types[layer] == CHUNKED and longest > window
        return AttentionKind(
            window=window if chunked else None,
            chunked=chunked,
            rope=found["rope"] if turned[layer] else None,
            query_scale=None if turned[layer] else tuned,
        )

    return found | {"layers": tuple(kind(layer) for layer in range(count))}


def _opt_facts(facts: Raw, own: Architecture, max_model_len: int | None) -> Raw:
    """Return the fields of OPT: learned positions, LayerNorm, ReLU, biases everywhere."""
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
        "names": "opt",
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


FACTS = {
    "Llama4ForCausalLM": _llama4_facts,
    "OPTForCausalLM": _opt_facts,
    "DeepseekV3ForCausalLM": _deepseek_facts,
    "DeepseekV32ForCausalLM": _deepseek_v32_facts,
}


def _find_architecture(raw: Mapping[str, Any]) -> str | None:
    named = raw.get("architectures") or [MODEL_TYPES.get(str(raw.get("model_type")))]
    named = [named] if isinstance(named, str) else list(named)
    return next((name for name in named if name in ARCHITECTURES), None)


def _ropes(
    facts: Raw, own: Architecture, head_dim: int, max_model_len: int | None
) -> dict[str, Rope]:
    """Return RoPE by type of layer: ``rope_parameters``, or ``rope_theta`` and ``rope_scaling``."""
    rope: Raw = {}
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(facts.get(key) or {}, dict):
            raise ValueError(f"config.json: {key} must be an object, got {facts[key]!r}")
        rope |= facts.get(key) or {}
    rope = rope or dict(own.defaults.get("default_rope", {}))
    kinds = (FULL, SLIDING)
    local = facts.get("rope_local_base_freq") if "rope_local_base_freq" in own.defaults else None
    if local is not None and all(isinstance(rope.get(kind), dict) for kind in kinds):
        for key in sorted(rope.keys() - set(kinds)):
            _refuse(f"rope_parameters.{key}", rope[key], "beside types of layers", PLAIN)
        return {kind: _rope(rope[kind], facts, own, head_dim, max_model_len) for kind in kinds}
    full = _rope(rope, facts, own, head_dim, max_model_len)
    if local is None:
        return dict.fromkeys(kinds, full)
    theta = _number(facts, "rope_local_base_freq", kind=float)
    return {FULL: full, SLIDING: Rope(theta=theta, **own.rope)}


def _rope(
    rope: Raw, facts: Raw, own: Architecture, head_dim: int, max_model_len: int | None
) -> Rope:
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if "mrope_section" in own.computed:  # of text it is plain RoPE: the three positions are equal
        rope = {key: value for key, value in rope.items() if not key.startswith("mrope_")}
    if rope.get("mrope_section") is not None or kind == "mrope":
        _refuse("mrope_section", rope.get("mrope_section"), "M-RoPE, multimodal", TEXT)
    if own.model_type == "phi3" and kind in ("su", "yarn"):
        kind = "longrope"  # its name before
    if kind == "dynamic" and own.model_type.startswith("hunyuan"):
        kind = "alpha"
    known = ("default", "llama3", "yarn", "linear", "longrope", "alpha")
    if kind not in known or (kind == "longrope" and own.model_type != "phi3"):
        remedy = "use a model with rope_type default, linear, llama3 or yarn, or its base without"
        _refuse("rope_type", kind, "another RoPE scaling", remedy)
    for key, value in rope.items():
        if isinstance(value, dict):
            _refuse(f"rope_parameters.{key}", value, "RoPE per layer type", PLAIN)
        if key not in ROPE_KEYS and value is not None:
            _refuse(f"rope_parameters.{key}", value, "an unknown fact of RoPE", PLAIN)
    partial = "partial_rotary_factor"
    if partial not in own.defaults and rope.get(partial) not in ONE:
        _refuse(partial, rope[partial], "partial rotary embedding", PLAIN)
    default = own.defaults.get("default_theta", 10000.0)
    share = _number(rope, partial, facts.get(partial, 1.0), kind=float)
    theta = _number(rope, "rope_theta", facts.get("rope_theta", default), kind=float)
    if facts.get("rope_theta", theta) != theta:
        both = f"{facts['rope_theta']} and {theta}"
        raise ValueError(f"config.json gives rope_theta twice, {both}: keep the right one")
    dim = int(head_dim * share)
    if kind == "alpha":
        alpha = _number(rope, "alpha", kind=float)
        if rope.get("factor") not in ONE:
            _refuse("rope_parameters.factor", rope["factor"], "beside alpha", "set it to 1")
        return Rope(theta=theta * alpha ** (dim / (dim - 2)), **own.rope)
    if kind == "longrope":
        scaling = _longrope(rope, facts, dim // 2, max_model_len)
    else:
        scaling = _scaling(kind, rope, facts)
    return Rope(theta=theta, dim=None if dim == head_dim else dim, scaling=scaling, **own.rope)


def _original(rope: Raw, facts: Raw) -> int | None:
    """Return the length of texts before RoPE was scaled, at either of its places."""
    key = "original_max_position_embeddings"
    outer, inner = facts.get(key), rope.get(key)
    if outer and inner and outer != inner:
        raise ValueError(f"config.json gives {key} twice, {outer} and {inner}: keep the right one")
    return outer or inner


def _longrope(rope: Raw, facts: Raw, pairs: int, max_model_len: int | None) -> LongRope:
    """Return the divisors for texts of ``max_model_len``, as vLLM chooses them: once for a run."""
    longest = _number(facts, "max_position_embeddings")
    original = _original(rope, facts) or longest
    name = "long_factor" if (max_model_len or longest) > original else "short_factor"
    divisors = rope.get(name)
    if not isinstance(divisors, list) or len(divisors) != pairs:
        raise ValueError(f"config.json: {name} must list {pairs} numbers, got {divisors!r}")
    if rope.get("factor") is not None:
        _refuse("rope_parameters.factor", rope["factor"], "longrope takes the ratio", PLAIN)
    ratio = longest / original
    longer = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
    return LongRope(divisors=tuple(map(float, divisors)), attention_factor=longer)


def _scaling(kind: str, rope: Raw, facts: Raw) -> Llama3Scaling | Yarn | LinearScaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=_number(rope, "factor", kind=float))
    original = _original(rope, facts) or facts["max_position_embeddings"]
    rope = rope | {"original_max_position_embeddings": original}
    original = _number(rope, "original_max_position_embeddings")
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        values = {name: _number(rope, name, kind=float) for name in names}
        return Llama3Scaling(**values, original_max_position_embeddings=original)
    if bool(rope.get("mscale")) != bool(rope.get("mscale_all_dim")):
        raise ValueError("config.json: YaRN's mscale and mscale_all_dim go together, got one")
    values: Raw = {"factor": _number(rope, "factor", kind=float)}
    for name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
        if rope.get(name):  # 0 is as good as nothing
            values[name] = _number(rope, name, kind=float)
    if rope.get("truncate") is not None:
        values["truncate"] = _flag(rope, "truncate")
    return Yarn(**values, original_max_position_embeddings=original)


def _refuse_other_than_swiglu(facts: Raw) -> None:
    if "hidden_activation" not in facts and facts["hidden_act"] not in ("silu", "swish"):
        _refuse("hidden_act", facts["hidden_act"], "not SwiGLU", "use a model with silu")


def _number(
    facts: Mapping[str, Any], key: str, default: Any = None, kind: type[int] | type[float] = int
) -> Any:
    value = default if facts.get(key) is None else facts[key]
    if value is None:
        raise ValueError(f"config.json lacks {key}")
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise ValueError(f"config.json: {key} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"config.json: {key} must be finite, got {value!r}")
    return kind(value)


def _norm_eps(facts: Mapping[str, Any]) -> float:
    epsilon = _number(facts, "rms_norm_eps", kind=float)
    if epsilon < 0:
        raise ValueError(f"config.json: rms_norm_eps must not be negative, got {epsilon}")
    return epsilon


def _list(facts: Mapping[str, Any], key: str) -> list[Any]:
    value = facts.get(key) or []
    if not isinstance(value, list):
        raise ValueError(f"config.json: {key} must be a list, got {value!r}")
    return value


def _flag(facts: Mapping[str, Any], key: str) -> bool:
    if not isinstance(facts[key], bool):
        raise ValueError(f"config.json: {key} must be true or false, got {facts[key]!r}")
    return facts[key]


def _refuse(key: str, value: Any, what: str, remedy: str) -> None:
    raise ValueError(f"config.json: {key} = {value!r} is not implemented ({what}); {remedy}")
