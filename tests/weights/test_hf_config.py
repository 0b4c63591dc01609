"""config.json in both of transformers' generations, and every fact that is refused."""

import dataclasses
import json
from pathlib import Path

import pytest
import transformers

from specjax.models.config import Indexer, Llama3Scaling, Rope
from specjax.weights.hf_config import architectures_table, parse_config, read_config
from tests.weights import tiny

REPOSITORY = Path(__file__).parents[2]
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
OPT = {key: value for key, value in LLAMA.items() if key != "intermediate_size"} | {
    "architectures": ["OPTForCausalLM"],
    "ffn_dim": 48,
}
SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
EXPECTED = Llama3Scaling(**SCALING)


def of(architecture, **facts):
    return LLAMA | {"architectures": [architecture]} | facts


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3"} | SCALING},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3"} | SCALING},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5} | SCALING},
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "llama3"} | SCALING},
    ],
)
def test_both_generations_of_rope_mean_the_same(rope):
    config = parse_config(LLAMA | rope)
    assert (config.rope.theta, config.rope.scaling) == (5e5, EXPECTED)


@pytest.mark.parametrize(
    "rope", [{}, {"rope_scaling": None}, {"rope_parameters": {"type": "default"}}]
)
def test_plain_rope_is_the_default(rope):
    config = parse_config(LLAMA | rope)
    assert config.rope == Rope()


def test_what_is_unsaid_follows_transformers():
    config = parse_config(LLAMA | {"head_dim": None, "num_key_value_heads": None})
    assert (config.num_kv_heads, config.head_dim) == (4, 8)
    assert not any((config.tie_word_embeddings, config.qkv_bias, config.mlp_bias))
    assert config.norm_eps == 1e-6
    assert parse_config(OPT).tie_word_embeddings
    assert parse_config(of("Qwen3ForCausalLM", num_key_value_heads=2)).head_dim == 128


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"vocab_size": 99}, {"vocab_size": 99}),
        ({"hidden_size": 40, "head_dim": 8}, {"hidden_size": 40}),
        ({"num_hidden_layers": 5}, {"num_layers": 5}),
        ({"num_attention_heads": 8, "head_dim": 8}, {"num_heads": 8}),
        ({"num_key_value_heads": 2}, {"num_kv_heads": 2}),
        ({"head_dim": 16}, {"head_dim": 16}),
        ({"max_position_embeddings": 77}, {"max_position_embeddings": 77}),
        ({"rms_norm_eps": 1e-5}, {"norm_eps": 1e-5}),
        ({"rope_theta": 7}, {"rope": Rope(theta=7.0)}),
        ({"attention_bias": True}, {"qkv_bias": True, "output_bias": True, "mlp_bias": False}),
        ({"mlp_bias": True}, {"qkv_bias": False, "output_bias": False, "mlp_bias": True}),
        ({"tie_word_embeddings": True}, {"tie_word_embeddings": True}),
    ],
    ids=str,
)
def test_every_key_arrives(facts, expected):
    config, plain = parse_config(LLAMA | facts), parse_config(LLAMA)
    for name, value in expected.items():
        assert getattr(config, name) == value
    assert config != plain


def test_opt_is_learned_positions_layer_norm_and_relu():
    config = parse_config(OPT)
    assert (config.positions, config.position_offset, config.mlp) == ("learned", 2, "relu")
    assert (config.norm, config.norm_eps) == ("layer", 1e-5)
    assert all((config.qkv_bias, config.output_bias, config.mlp_bias))
    bare = parse_config(OPT | {"enable_bias": False})
    assert not any((bare.qkv_bias, bare.output_bias, bare.mlp_bias))


@pytest.mark.parametrize(
    ("asked", "stored", "expected"),
    [
        ("auto", "bfloat16", "float32"),
        ("half", "float32", "float16"),
        ("float", "bfloat16", "float32"),
        ("bfloat16", "float32", "bfloat16"),
    ],
)
@pytest.mark.parametrize("backend", ["cpu"])
def test_dtype_is_what_is_asked_and_auto_is_float32_on_a_cpu(
    asked, stored, expected, backend, monkeypatch
):
    monkeypatch.setattr("jax.default_backend", lambda: backend)
    assert parse_config(LLAMA | {"torch_dtype": stored}, asked).dtype == expected


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32"])
def test_dtype_auto_is_the_checkpoint_s_on_an_accelerator(key, stored, monkeypatch):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    assert parse_config(LLAMA | {key: stored}).dtype == stored


MISTRAL_WINDOW = of("MistralForCausalLM", sliding_window=50, num_key_value_heads=2)
QWEN_WINDOW = of(
    "Qwen2ForCausalLM", use_sliding_window=True, sliding_window=50, max_window_layers=1
) | {"num_key_value_heads": 2}


@pytest.mark.parametrize("raw", [MISTRAL_WINDOW, QWEN_WINDOW], ids=["mistral", "qwen2"])
def test_a_sliding_window_is_computed_only_where_it_is_reached(raw):
    for length in (None, 51):
        config = parse_config(raw, max_model_len=length)
        first = raw.get("max_window_layers", 0)
        windows = [config.kind(layer).window for layer in range(config.num_layers)]
        assert windows == [None] * first + [50] * (config.num_layers - first)
    plain = parse_config(raw, max_model_len=50)
    assert plain.layers == ()
    assert parse_config(raw | {"use_sliding_window": False}) == plain
    assert parse_config(raw | {"sliding_window": None}) == plain


def test_qwen_layers_below_max_window_layers_see_everything():
    assert not parse_config(QWEN_WINDOW | {"max_window_layers": 3}).layers
    types = ["sliding_attention"] + ["full_attention"] * 2
    kinds = parse_config(QWEN_WINDOW | {"layer_types": types}).layers
    assert [kind.window for kind in kinds] == [50, None, None]
    with pytest.raises(ValueError, match="layer_types names 2 of 3 layers"):
        parse_config(QWEN_WINDOW | {"layer_types": types[:2]})
    assert not parse_config(QWEN_WINDOW | {"layer_types": ["full_attention"] * 3}).layers


def test_mistral_that_says_nothing_has_transformers_window():
    raw = of("MistralForCausalLM", num_key_value_heads=2)
    assert parse_config(raw).kind(0).window == 4096
    assert not parse_config(raw, max_model_len=4096).layers


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"layer_types": ["sliding_attention"] * 3}, "lacks sliding_window"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types = .*linear_attention"),
        ({"layer_types": "full_attention"}, "layer_types must be a list, got 'full_attention'"),
        ({"rope_scaling": {"type": "yarn"}}, "lacks factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 0.5}}, "need factor >= 1"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 1.0}}, "go together"),
        ({"rope_scaling": {"type": "yarn", "attention_factor": 2.0}}, "attention_factor = 2.0"),
        ({"rope_scaling": {"type": "linear", "factor": 0.0}}, "need factor > 0"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_type = 'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type = 'longrope'"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}, "mrope_section = "),
        ({"rope_scaling": {"type": "default", "mrope_section": [1]}}, "mrope_section = "),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "full_attention"),
        ({"rope_parameters": {"novel_factor": 3}}, "novel_factor = 3"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object, got 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "lacks low_freq_factor"),
        ({"rope_theta": 1.0, "rope_parameters": {"rope_theta": 2.0}}, "rope_theta twice"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        ({"num_experts": 8}, "num_experts = 8"),
        ({"num_local_experts": 8}, "num_local_experts = 8"),
        ({"n_routed_experts": 64}, "n_routed_experts = 64"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.bits = None"),
        ({"vision_config": {"depth": 2}}, "vision_config"),
        ({"audio_config": {"depth": 2}}, "audio_config"),
        ({"text_config": {"depth": 2}}, "text_config"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"logits_scaling": 8.0}, "logits_scaling = 8.0"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier = 12.0"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        ({"architectures": ["FooForCausalLM"]}, "FooForCausalLM.*known are Llama.*OPTForCausalLM"),
        ({"architectures": None, "model_type": "foo"}, "model_type 'foo'.*known are"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"hidden_size": "32"}, "hidden_size must be a number, got '32'"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps must be finite, got inf"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be finite, got nan"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps must not be negative"),
        ({"rope_theta": float("inf")}, "rope_theta must be finite, got inf"),
        ({"rope_theta": 0.0}, "RoPE needs theta > 0"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ({"num_attention_heads": 0}, "num_heads must be at least 1, got 0"),
        ({"num_key_value_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
    ],
    ids=str,
)
def test_what_is_not_implemented_is_refused_by_name(facts, message):
    with pytest.raises(ValueError, match=message):
        parse_config(LLAMA | facts)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"word_embed_proj_dim": 16}, "word_embed_proj_dim = 16"),
        ({"do_layer_norm_before": False}, "do_layer_norm_before = False"),
        ({"_remove_final_layer_norm": True}, "_remove_final_layer_norm = True"),
        ({"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine = False"),
        ({"activation_function": "gelu"}, "activation_function = 'gelu'"),
        ({"hidden_size": 33}, "hidden_size 33 is not a multiple"),
    ],
    ids=str,
)
def test_opt_s_other_shapes_are_refused_by_name(facts, message):
    with pytest.raises(ValueError, match=message):
        parse_config(OPT | facts)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
        ({"topk_method": "greedy"}, "topk_method = 'greedy'"),
        ({"moe_layer_freq": 2}, "moe_layer_freq = 2"),
        ({"rope_interleave": False}, "rope_interleave = False"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"num_key_value_heads": 2}, "num_key_value_heads = 2"),
        (
            {"num_local_experts": 8, "n_routed_experts": 16},
            "n_routed_experts = 16, but|but n_routed_experts = 8",
        ),
        ({"n_routed_experts": 63}, "equal groups of at least 2.*n_routed_experts=63"),
        ({"num_experts_per_tok": 200}, "num_experts_per_tok is not within the chosen groups"),
        ({"kv_lora_rank": 0}, "latent attention must be at least 1"),
    ],
    ids=str,
)
def test_deepseek_s_other_shapes_are_refused_by_name(facts, message):
    with pytest.raises(ValueError, match=message):
        parse_config(of("DeepseekV3ForCausalLM") | facts)


def test_deepseek_v32_is_v3_with_an_indexer():
    sizes = {"num_hidden_layers": 5, "max_position_embeddings": 163840}
    raw = of("DeepseekV32ForCausalLM", **sizes)
    config, v3 = parse_config(raw), parse_config(of("DeepseekV3ForCausalLM", **sizes))
    indexer = Indexer(num_heads=64, head_dim=128, top_k=2048)
    assert config.latent == dataclasses.replace(v3.latent, indexer=indexer)
    assert dataclasses.replace(config, latent=v3.latent) == v3
    for wrong, message in (
        ({"mlp_layer_types": ["sparse"] * 5}, "mlp_layer_types"),
        ({"q_lora_rank": None}, "an indexer needs q_lora_rank"),
        ({"index_head_dim": 32}, "head_dim >= qk_rope_head_dim"),
        ({"index_topk": 0}, "sizes of an indexer must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_config(raw | wrong)


def test_deepseek_that_says_little_has_transformers_sizes():
    config = parse_config(of("DeepseekV3ForCausalLM", num_hidden_layers=5))
    theirs = transformers.DeepseekV3Config()
    for record in filter(None, (config.latent, config.experts)):
        given = {k: v for k, v in dataclasses.asdict(record).items() if hasattr(theirs, k)}
        assert given == {name: getattr(theirs, name) for name in given}
        assert len(given) >= 5
    assert config.mixtures == (False,) * 3 + (True,) * 2


def test_published_gemma_3_reads_like_a_saved_one():
    old = of("Gemma3ForCausalLM", head_dim=16, sliding_window=9, sliding_window_pattern=3) | {
        "rope_theta": 5e5,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}
    new = of("Gemma3ForCausalLM", head_dim=16, sliding_window=9) | {
        "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    }
    assert parse_config(old) == parse_config(new)
    for key, other in (("rope_local_base_freq", 50.0), ("sliding_window_pattern", 2)):
        assert parse_config(old | {key: other}) != parse_config(old)


def test_published_hunyuan_loads():
    """Its flags are the original code's; transformers' class lacks them."""
    raw = of("HunYuanDenseV1ForCausalLM", tie_word_embeddings=True, head_dim=8) | {
        **{"use_qk_norm": True, "use_cla": False, "cla_share_factor": 2, "norm_type": "rms"},
        **{"attention_head_dim": 8, "num_experts": 1, "attention_bias": False, "mlp_bias": False},
        "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0}
        | {"mscale": 1.0, "mscale_all_dim": 1.0, "type": "dynamic"},
    }
    config = parse_config(raw)
    assert all((config.qk_norm, config.qk_norm_last, config.tie_word_embeddings))
    assert config.rope.theta == 1e4 * 1000 ** (8 / 6)
    assert not parse_config(raw | {"use_qk_norm": False}).qk_norm
    for wrong in (
        {"use_cla": True},
        {"num_experts": 16},
        {"norm_type": "layer"},
        {"mlp_bias": True},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} = "):
            parse_config(raw | wrong)


def test_facts_another_architecture_ignores_are_refused():
    for name, key, value in (
        ("MistralForCausalLM", "attention_bias", True),
        ("Qwen3ForCausalLM", "mlp_bias", True),
        ("MiMoForCausalLM", "attention_bias", False),
        ("Phi3ForCausalLM", "lm_head_bias", True),
    ):
        raw = of(name, sliding_window=None, num_key_value_heads=2) | {key: value}
        with pytest.raises(ValueError, match=f"{key} = {value} .*{name}"):
            parse_config(raw)


def test_an_unknown_dtype_names_the_known():
    with pytest.raises(ValueError, match=r"'int8': use one of auto, .*half"):
        parse_config(LLAMA, "int8")


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_old_and_new_files_of_a_variant_read_alike(variant, tmp_path):
    tiny.save(tiny.reference(variant)[0], tmp_path)
    config, raw = read_config(tmp_path)
    rope = raw.pop("rope_parameters", None) or {}
    outer = {key: rope.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    old = raw | outer | {"rope_scaling": rope if rope.get("rope_type") != "default" else None}
    assert parse_config(old) == config


@pytest.mark.parametrize("text", ["", "{", "[]", '{"architectures": ', "[" * 200_000])
def test_a_damaged_file_is_an_error(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        read_config(tmp_path / "nowhere")


def test_the_raw_file_comes_back_as_it_stands(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"eos_token_id": [1, 2]}))
    assert read_config(tmp_path)[1] == LLAMA | {"eos_token_id": [1, 2]}


# Keys of a config.json that change nothing about logits.
HARMLESS = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "eod_token_id"),
    *("initializer_range", "init_std", "use_cache", "transformers_version", "model_type"),
    *("attention_dropout", "activation_dropout", "dropout", "resid_pdrop", "embd_pdrop"),
    *("layerdrop", "router_aux_loss_coef", "output_router_logits", "router_jitter_noise"),
    *("pretraining_tp", "num_mtp_layers", "num_nextn_predict_layers", "ep_size"),
    *("output_hidden_states", "output_attentions", "return_dict", "chunk_size_feed_forward"),
    *("id2label", "label2id", "problem_type", "name_or_path", "_name_or_path", "dtype"),
    *("attn_implementation", "_attn_implementation", "is_decoder", "use_return_dict"),
    *("cross_attention_hidden_size", "qk_head_dim", "initial_context_length"),
    *("cla_share_factor", "org_vocab_size", "mtp_num_hidden_layers", "cache_implementation"),
}
PUBLISHED = {  # what config.json of published models holds beside the keys of transformers' class
    "hunyuan": {"use_qk_norm": True, "use_cla": False, "cla_share_factor": 2, "norm_type": "rms"}
    | {"attention_head_dim": 16, "num_experts": 1, "mlp_bias": False, "use_mixed_mlp_moe": False}
    | {"use_rotary_pos_emb": True, "position_embedding_xdrope": False, "org_vocab_size": 97},
    "phi3": {"attention_bias": False, "mlp_bias": False, "lm_head_bias": False}
    | {"full_attn_mod": 1, "interpolate_factor": 1},
    "gpt-oss": {"experts_per_token": 3, "initial_context_length": 16},
    "glm4-moe": {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "deepseek": {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "deepseek-v32": {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "gemma3": {"attn_logit_softcapping": None, "cache_implementation": "hybrid"},
    "llama4": {"moe_layers": None, "no_rope_layers": None, "layer_types": None},
    "qwen3-next": {"layer_types": None, "full_attention_interval": 2},
    "qwen3-5": {"layer_types": None, "full_attention_interval": 2}
    | {"attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1},
    "qwen3-5-moe": {"attn_output_gate": True, "mamba_ssm_dtype": "float32"},
}
QWEN = ("qwen2", "qwen2-tied", "qwen3", "qwen3-biased", "qwen3-yarn", "qwen3-moe")
UNREAD = {  # keys that a class reads only where another key says so, or not at all
    "max_window_layers": QWEN,
    "sliding_window": QWEN,
    "use_sliding_window": QWEN,
    "_sliding_window_pattern": ("gemma3",),  # with layer_types
    "rope_parameters.short_factor": ("phi3",),  # texts are longer than the original length
    "head_dim": ("deepseek", "deepseek-yarn", "deepseek-v32"),
    "rms_norm_eps": ("opt", "opt-untied", "opt-unbiased"),
}


def written(variant):
    """Return a variant's config.json, with every key of transformers' class and published ones."""
    architecture, facts = tiny.VARIANTS[variant]
    config = getattr(transformers, architecture).config_class(**facts)
    raw = json.loads(config.to_json_string(use_diff=False))
    return raw | PUBLISHED.get(variant, {}) | {"architectures": [architecture]}


def mutants(raw, path=()):
    """Yield (key, config.json) with one value changed, also inside of its dictionaries."""
    for key, value in raw.items():
        if isinstance(value, dict) and key not in HARMLESS:
            for name, inner in mutants(value, (*path, key)):
                yield name, raw | {key: inner}
            continue
        if isinstance(value, bool):
            other = not value
        elif isinstance(value, (int, float)):
            other = value * 2 + 1
        elif isinstance(value, list):
            other = value[::-1] if value[::-1] != value else [*value[1:], "other"]
        else:
            other = 3 if value is None else "other"
        yield ".".join((*path, key)), raw | {key: other}


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_every_key_is_computed_or_refused_by_name(variant):
    raw = written(variant)
    config, ignored = parse_config(raw), []
    for key, changed in mutants(raw):
        if key in HARMLESS or variant in UNREAD.get(key, ()):
            continue
        try:
            same = parse_config(changed) == config
        except ValueError:
            continue
        if same:
            ignored.append(key)
    assert not ignored, f"{variant}: ignored are {ignored}"


def test_the_page_about_models_names_what_loads():
    assert architectures_table() in (REPOSITORY / "docs/guide/models.md").read_text()
