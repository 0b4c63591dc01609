"""The speculators format is read as vLLM reads it, and written so that reading gives the same."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from specjax import LLM, SamplingParams
from specjax.bundled import BUNDLED
from specjax.engine.options.methods import direct, infer_method
from specjax.engine.options.speculative import SpeculativeConfig
from specjax.models.build import build_block_head, init_params
from specjax.weights.convert_head import convert_head
from specjax.weights.head_configs import read_head_config
from specjax.weights.heads import load_head, name, paths
from specjax.weights.save_heads import save_head
from specjax.weights.speculators import read_proposal, to_speculators, translate
from tests.laws import harness as h
from tests.weights.test_heads import changed

KEPT = np.arange(1, h.VOCAB - 7)
KINDS = {  # our kind of head: (its config, method, parallel)
    "eagle3": (h.HEADS["eagle3"][0], "eagle3", False),
    "peagle": (h.HEADS["peagle"][0], "eagle3", True),
    "dflash": (
        dataclasses.replace(h.DFLASH, causal=(True, True), sliding_windows=(7, 7)),
        "dflash",
        False,
    ),
    "dspark": (h.DSPARK, "dspark", False),
}
EAGLES = ["Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"]
VLLM_S = (*EAGLES, "DFlashDraftModel", "Qwen3DSparkModel")
RAW = {
    "speculators_model_type": "eagle3",
    "speculators_config": {
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": "bundled", "architectures": ["Qwen3ForCausalLM"]},
    },
    "transformer_layer_config": {"model_type": "llama", "num_hidden_layers": 1},
}


def write(folder, kind):
    config = KINDS[kind][0]
    folder.mkdir()
    weights = paths(init_params(config, jax.random.key(2)))
    own = {name(path): leaf for path, leaf in weights.items() if path != ("vocab_rows",)}
    kept = KEPT if config.draft_vocab_size else None
    save_head(folder, kind, config, own, kept, dtype="float32")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_is_the_same_head(kind, tmp_path):
    """Config, weights and method; ``midlayer`` is the one name that differs."""
    config, method, parallel = KINDS[kind]
    first = write(tmp_path / kind, kind)
    there = convert_head(first, tmp_path / "there", "speculators", method, "bundled", 3)
    back = convert_head(there, tmp_path / "back", "vllm", method)
    target = {"layers": [], "embed_tokens": {"weight": jnp.zeros((h.VOCAB, 32))}}
    loaded = []
    for folder in (first, there, back):
        assert infer_method(str(folder)) == method
        assert read_head_config(folder, kind, h.TINY) == config
        loaded.append(load_head(folder, kind, config, target))
    for other in loaded[1:]:
        jax.tree.map(np.testing.assert_array_equal, loaded[0], other)
    (named,) = json.loads((back / "config.json").read_text())["architectures"]
    assert named in VLLM_S  # P-EAGLE's own are refused outside the speculators format
    raw = json.loads((there / "config.json").read_text())
    assert read_proposal(raw) == (method, 3, parallel, "bundled")
    assert not any(key.startswith("midlayer") for key in load_file(there / "model.safetensors"))
    served = SpeculativeConfig.from_dict({"model": str(there), "num_speculative_tokens": 3})
    assert (served.method, served.parallel_drafting) == (method, parallel)
    assert served.head_kind == kind


def test_a_folder_names_its_target_and_its_k_and_says_what_the_raw_head_says(tmp_path):
    """The bundled eagle3 as LLM(model=FOLDER), as speculative_config's model, and as it is."""
    folder = convert_head(
        BUNDLED["bundled:eagle3"], tmp_path / "s", "speculators", "eagle3", "bundled", 3
    )
    served = [
        LLM(str(folder), max_model_len=64),
        LLM(speculative_config={"model": str(folder), "num_speculative_tokens": 3},
            max_model_len=64),
        LLM(speculative_config={"model": "bundled:eagle3", "num_speculative_tokens": 3},
            max_model_len=64),
    ]  # fmt: skip
    greedy = SamplingParams(temperature=0, max_tokens=24)
    said = [llm.generate("def add(", greedy)[0].outputs[0] for llm in served]
    assert said[0].token_ids == said[1].token_ids == said[2].token_ids
    assert said[0].drafts == said[1].drafts == said[2].drafts
    assert served[0].counters == served[1].counters == served[2].counters


def test_what_is_given_overrides_all_but_the_method(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(RAW))
    model, given = direct(folder, {"num_speculative_tokens": 5, "method": "medusa"})
    assert model == "bundled"
    assert given == {"num_speculative_tokens": 5, "method": "eagle3", "model": str(folder)}
    assert direct(folder, None)[1]["num_speculative_tokens"] == 3
    assert direct("bundled", {"method": "ngram"}) == ("bundled", {"method": "ngram"})


def test_defaults_and_numbers_of_layers_are_those_of_vllm_s_reader():
    """norm_before_residual is true if absent; tapped layers are counted without a + 1."""
    assert translate(RAW)["norm_before_residual"] is True
    assert translate({**RAW, "speculators_model_type": "peagle"})["norm_before_residual"] is False
    block = {"num_hidden_layers": 2, "layer_types": ["sliding_attention"] * 2}
    dflash = {
        **RAW, "speculators_model_type": "dflash", "aux_hidden_state_layer_ids": [1, 4],
        "mask_token_id": 7, "transformer_layer_config": block,
    }  # fmt: skip
    assert translate(dflash)["eagle_aux_hidden_state_layer_ids"] == [1, 4]
    assert translate(dflash)["dflash_config"]["causal"] is False
    causal = {**dflash, "sliding_window_non_causal": False}
    assert translate(causal)["dflash_config"]["causal"] is True
    full = {**causal, "transformer_layer_config": {"num_hidden_layers": 2}}
    with pytest.warns(UserWarning, match="makes the layers with full attention causal too"):
        translate(full)
    dspark = {**dflash, "speculators_model_type": "dspark", "markov_rank": 4}
    assert translate(dspark)["sample_from_anchor"] is False
    assert "markov_head_type" not in translate(dspark)  # absent, it is "vanilla" to every reader


@pytest.mark.parametrize(
    ("kind", "inside"),
    [
        ("dflash", {"use_swa": True, "swa_window_size": 7}),
        ("dflash", {"use_swa": True, "swa_window_size": 7, "causal": True}),
        ("dspark", {"use_swa": True, "swa_window_size": 7}),
        ("dspark", {"causal": True}),
    ],
)
def test_what_dflash_config_says_of_attention_is_kept(kind, inside, tmp_path):
    first = write(tmp_path / kind, kind)
    raw = json.loads((first / "config.json").read_text())
    number = raw["num_hidden_layers"]
    raw |= {"layer_types": ["full_attention"] * number, "sliding_window": None}
    raw["dflash_config"] = {**raw.get("dflash_config", {}), **inside}
    if "causal" not in inside:
        raw["dflash_config"].pop("causal", None)
    (first / "config.json").write_text(json.dumps(raw))
    there = convert_head(first, tmp_path / "there", "speculators", kind)
    config = read_head_config(first, kind, h.TINY)
    assert read_head_config(there, kind, h.TINY) == config
    assert config.sliding_windows == (7 if "use_swa" in inside else None,) * number
    assert config.causal == (bool(inside.get("causal")),) * number


def test_a_head_says_how_many_tokens_it_is_served_with(tmp_path):
    """One less than DFlash's block, which has the last token too; 5 where there is no block."""
    for kind, facts, expected in (
        ("dflash", {"block_size": 16}, 15),
        ("dspark", {"block_size": 7}, 7),
        ("dspark", {"block_size": 8, "sample_from_anchor": False}, 7),
        ("dflash", {}, 5),
        ("eagle3", {}, 5),
    ):
        one = tmp_path / f"{kind}{expected}{len(facts)}"
        head = changed(write(one, kind), tmp_path / f"{one.name}changed", facts)
        there = convert_head(head, tmp_path / f"{one.name}there", "speculators", kind)
        raw = json.loads((there / "config.json").read_text())
        assert read_proposal(raw).num_speculative_tokens == expected
        if "block_size" in facts:
            assert raw["block_size"] == facts["block_size"]


@pytest.mark.parametrize("key", ["pard_token", "ptd_token_id", "dspark_noise_token_id"])
def test_p_eagle_is_known_by_each_of_vllm_s_keys(key, tmp_path):
    first = write(tmp_path / "peagle", "peagle")
    raw = json.loads((first / "config.json").read_text())
    raw[key] = raw.pop("mask_token_id")
    (first / "config.json").write_text(json.dumps(raw))
    there = convert_head(first, tmp_path / "there", "speculators", "eagle3")
    assert read_head_config(there, "peagle", h.TINY) == KINDS["peagle"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speculators_model_type": "hass"}, "'hass' is not implemented: known are eagle3"),
        ({"transformer_layer_config": None}, "needs transformer_layer_config, got None"),
        ({"speculators_model_type": "dflash"}, "needs aux_hidden_state_layer_ids"),
        ({"transformer_layer_config": {"model_type": "gpt2"}}, "model_type 'gpt2' is not"),
    ],
)
def test_a_config_that_vllm_would_not_read_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        translate({**RAW, **change})


def test_a_folder_without_target_or_k_says_how_to_be_served(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    for own, message in (
        ({"proposal_methods": [{"speculative_tokens": 3}]}, "names no target .*pass the target"),
        (
            RAW["speculators_config"] | {"verifier": {"name_or_path": "Qwen/Qwen3-8B"}},
            "names the target 'Qwen/Qwen3-8B', which is no folder here .*pass the target",
        ),
        ({"proposal_methods": []}, "proposal_methods with speculative_tokens"),
    ):
        (folder / "config.json").write_text(json.dumps({**RAW, "speculators_config": own}))
        with pytest.raises(ValueError, match=message):
            direct(folder, None)


def test_a_conversion_that_cannot_be_is_refused(tmp_path):
    for source, layout, message in (
        ("bundled:eagle3", "vllm", "is in the layout 'vllm' already"),
        ("bundled:eagle3", "onnx", "unknown layout 'onnx': use one of speculators, vllm"),
        ("bundled:medusa", "speculators", "has no 'medusa' heads, only eagle3, peagle"),
    ):
        with pytest.raises(ValueError, match=message):
            convert_head(BUNDLED[source], tmp_path / "new", layout, infer_method(source))
        assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="exists already"):
        convert_head(BUNDLED["bundled:eagle3"], tmp_path, "speculators", "eagle3")


def test_a_head_with_latent_attention_has_no_speculators_config():
    with pytest.raises(ValueError, match="no heads with latent attention"):
        to_speculators({"kv_lora_rank": 512}, "eagle3", 3, None)


def test_a_field_without_a_place_in_the_speculators_format_is_refused():
    own = {"mask_token_id": 5, "target_layer_ids": [0], "attention_value_scale": 0.7}
    with pytest.raises(
        ValueError, match=r"no place for dflash_config's attention_value_scale=0\.7"
    ):
        to_speculators({"dflash_config": own}, "dflash", 3, None)


def test_a_dflash_head_of_mixed_causality_has_no_speculators_config(tmp_path):
    folder = write(tmp_path / "dflash", "dflash")
    raw = json.loads((folder / "config.json").read_text())
    raw["layer_types"] = ["full_attention", "sliding_attention"]  # so one is causal, one is not
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ValueError, match="cannot say that sliding layers are causal and full"):
        convert_head(folder, tmp_path / "new", "speculators", "dflash")


BLOCK_FACTS = [
    ("dflash", {"dflash_config": {"target_layer_ids": [0, 1]}}, "lacks dflash_config.mask_token"),
    ("dflash", {"dflash_config": {"mask_token_id": 5}}, "lacks target_layer_ids"),
    (
        "dflash",
        {"dflash_config": {"mask_token_id": 99, "target_layer_ids": [0]}},
        "=99 is no token",
    ),
    ("dflash", {"layer_types": ["chunked"] * 2}, "does not describe 2 layers"),
    ("dflash", {"sliding_window": None}, "needs dflash_config.swa_window_size"),
    (
        "dflash",
        {"architectures": ["DFlash2DraftModel"]},
        "unknown architecture 'DFlash2DraftModel'",
    ),
    ("dflash", {"is_neox_style": False}, "is_neox_style=False is not implemented"),
    ("dspark", {"markov_head_type": "gated"}, "markov_head_type='gated' is not implemented"),
    ("dspark", {"mask_token_id": None}, "lacks mask_token_id"),
    ("dspark", {"markov_rank": 0}, "needs a markov_rank above 0"),
    ("dspark", {"use_aux_hidden_state": False}, "without tapped layers"),
    ("peagle", {"mask_token_id": 999}, "mask_token_id=999 is no token: the vocabulary has 40"),
    ("dspark", {"target_layer_ids": [0, 9]}, r"taps layers \[1, 10\] of a target that has 2"),
    ("peagle", {"mask_token_id": None}, "needs a mask token, and its config.json has none of"),
]


@pytest.mark.parametrize(("kind", "facts", "message"), BLOCK_FACTS)
def test_a_head_that_is_not_implemented_or_does_not_fit_is_refused(kind, facts, message, tmp_path):
    folder = changed(write(tmp_path / kind, kind), tmp_path / "changed", facts)
    with pytest.raises(ValueError, match=message):
        read_head_config(folder, kind, h.TINY)


def test_specforge_s_layout_has_dspark_s_fields_inside_dflash_config(tmp_path):
    folder = write(tmp_path / "dspark", "dspark")
    raw = json.loads((folder / "config.json").read_text())
    inside = ("mask_token_id", "target_layer_ids", "markov_rank", "enable_confidence_head",
              "confidence_head_with_markov")  # fmt: skip
    own = {key: raw.pop(key) for key in inside}
    (folder / "config.json").write_text(json.dumps({**raw, "dflash_config": own}))
    assert read_head_config(folder, "dspark", h.TINY) == h.DSPARK
    for layout in ("vllm", "speculators"):
        there = convert_head(folder, tmp_path / layout, layout, "dspark")
        assert read_head_config(there, "dspark", h.TINY) == h.DSPARK
    assert json.loads((tmp_path / "vllm" / "config.json").read_text())["markov_rank"] == 6


def test_specforge_s_p_eagle_gets_the_name_that_vllm_loads(tmp_path):
    folder = changed(
        write(tmp_path / "peagle", "peagle"),
        tmp_path / "specforge",
        {"architectures": ["PEagleDraftModel"]},
    )
    there = convert_head(folder, tmp_path / "there", "vllm", infer_method(str(folder)))
    assert json.loads((there / "config.json").read_text())["architectures"] == EAGLES[:1]
    found = read_head_config(there, "peagle", h.TINY)
    assert found == read_head_config(folder, "peagle", h.TINY)
    assert found.mask_token_id == 5


def test_layers_without_a_theta_have_vllm_s_million(tmp_path):
    folder = write(tmp_path / "dflash", "dflash")
    raw = json.loads((folder / "config.json").read_text())
    raw.pop("rope_theta")
    (folder / "config.json").write_text(json.dumps(raw))
    config = read_head_config(folder, "dflash", h.TINY)
    assert config.block.rope.theta == 1e6


def test_a_mask_may_have_an_embedding_of_its_own(tmp_path):
    """As XiaomiMiMo's: beside the vocabulary's, so that only masked places read it."""
    torch = pytest.importorskip("torch", reason="pip install 'specjax[bridge]'")
    folder, target = write(tmp_path / "dflash", "dflash"), {"layers": [], "embed_tokens": {}}
    target["embed_tokens"]["weight"] = jnp.ones((h.VOCAB, 32))
    state = {"embedding": torch.arange(32.0).bfloat16(), "mask_token_id": 5}
    torch.save(state, folder / "mask_embedding.pt")
    config = read_head_config(folder, "dflash", h.TINY)
    assert config == dataclasses.replace(KINDS["dflash"][0], mask_embedding=True)
    params = load_head(folder, "dflash", config, target)
    np.testing.assert_array_equal(params["mask_embedding"], np.arange(32))

    def forward(head, weights, tokens):
        drafting = build_block_head(head)
        cache, positions = drafting.init_cache(1, 16), jnp.arange(3)[None]
        seen, places = jnp.ones((1, 3, 3), bool), jnp.arange(16)[None]
        return drafting.forward(weights, tokens, positions, seen, places, cache, 16)[0]

    plain = {key: value for key, value in params.items() if key != "mask_embedding"}
    embedding = params["embed_tokens"]["weight"]
    moved = plain | {"embed_tokens": {"weight": embedding.at[5].set(jnp.arange(32.0))}}
    masked = jnp.asarray([[3, 5, 5]])
    found = forward(config, params, masked)
    np.testing.assert_array_equal(found, forward(KINDS["dflash"][0], moved, masked))
    assert (found != forward(KINDS["dflash"][0], plain, masked)).any()

    for wrong, message in (
        (state | {"mask_token_id": 6}, "is of mask_token_id 6, config.json of 5"),
        (state | {"embedding": torch.ones(31)}, r"an embedding of 32 numbers, got .*31"),
        ({"weights": torch.ones(32)}, "an embedding of 32 numbers, got None"),
    ):
        torch.save(wrong, folder / "mask_embedding.pt")
        with pytest.raises(ValueError, match=message):
            load_head(folder, "dflash", config, target)
    (folder / "mask_embedding.pt").write_bytes(b"no pickle")
    with pytest.raises(ValueError, match="is damaged, or holds more than tensors"):
        load_head(folder, "dflash", config, target)


def test_a_draft_model_with_a_mask_token_drafts_in_parallel(pair, tmp_path):
    """PARD's folder is an ordinary one with pard_token; without one it is refused."""
    folder = tmp_path / "pard"
    shutil.copytree(pair.draft, folder)
    config = {"model": str(folder), "num_speculative_tokens": 3, "parallel_drafting": True}
    with pytest.raises(ValueError, match="needs a mask token"):
        LLM(pair.target, speculative_config=config, max_model_len=64)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "pard_token": 999999}))
    with pytest.raises(ValueError, match="mask_token_id=999999 is no token"):
        LLM(pair.target, speculative_config=config, max_model_len=64)
    (folder / "config.json").write_text(json.dumps({**raw, "pard_token": 259}))
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    plain = LLM(pair.target, max_model_len=64).generate("def", greedy)
    llm = LLM(pair.target, speculative_config=config, max_model_len=64)
    assert llm.generate("def", greedy)[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
    assert llm.counters.num_drafts > 0
