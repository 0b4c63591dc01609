"""The cycle checkpoints: the same bytes every time, the right names, partial acceptance."""

import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from specjax import LLM, SamplingParams
from tests.checkpoints.cycle import build
from tests.checkpoints.language import CYCLE, HIDDEN, VOCAB, draw

PARAMS = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
PROMPTS = [
    {"prompt_token_ids": row.tolist()}
    for row in np.random.default_rng(5).integers(0, VOCAB, (8, 12))
]
ARCHITECTURES = {  # name: (architecture, model_type, layers, tensors)
    "target": ("Qwen3ForCausalLM", "qwen3", 8, 91),
    "llama": ("LlamaForCausalLM", "llama", 3, 30),
    "draft": ("Qwen3ForCausalLM", "qwen3", 2, 25),
    "eagle": ("LlamaForCausalLM", "llama", 1, 9),
    "eagle3": ("LlamaForCausalLMEagle3", "llama", 1, 13),
    "eagle3_reduced": ("Eagle3Qwen3ForCausalLM", "qwen3", 1, 17),
    "eagle3_norm_before_fc": ("LlamaForCausalLMEagle3", "llama", 1, 14),
    "eagle3_1": ("LlamaForCausalLMEagle3", "llama", 1, 16),
    "eagle3_latent": ("Eagle3DeepseekV2ForCausalLM", "deepseek_v2", 1, 16),
    "peagle": ("LlamaForCausalLMEagle3", "llama", 1, 14),
    "dflash": ("DFlashDraftModel", "qwen3", 2, 27),
    "dflash_causal": ("DFlashDraftModel", "qwen3", 2, 27),
    "dflash_sliding": ("DFlashDraftModel", "qwen3", 2, 27),
    "dflash_reduced": ("DFlashDraftModel", "qwen3", 2, 29),
    "dflash_mixed": ("DFlashDraftModel", "qwen3", 2, 27),
    "dspark": ("Qwen3DSparkModel", "qwen3", 2, 31),
    "pard": ("Qwen3ForCausalLM", "qwen3", 2, 25),
    "medusa": ("MedusaModel", "medusa", 1, 6),
    "medusa_original": ("MedusaModel", "medusa", 1, 9),
    "mimo": ("MiMoForCausalLM", "qwen2", 3, 55),
    "deepseek": ("DeepseekV3ForCausalLM", "deepseek_v3", 2, 45),
    "deepseek_experts": ("DeepseekV3ForCausalLM", "deepseek_v3", 2, 97),
}
TENSORS = [  # checkpoint, name, shape
    ("target", "model.layers.7.self_attn.k_norm.weight", (32,)),
    ("llama", "model.layers.2.self_attn.q_proj.weight", (64, 64)),
    ("eagle", "fc.weight", (64, 128)),
    ("eagle", "layers.0.post_attention_layernorm.weight", (64,)),
    ("eagle3", "fc.weight", (64, 192)),
    ("eagle3", "midlayer.hidden_norm.weight", (64,)),
    ("eagle3", "midlayer.self_attn.q_proj.weight", (128, 128)),
    ("eagle3", "midlayer.self_attn.o_proj.weight", (64, 128)),
    ("eagle3", "lm_head.weight", (256, 64)),
    ("eagle3_reduced", "midlayer.self_attn.q_norm.weight", (32,)),
    ("eagle3_reduced", "lm_head.weight", (224, 64)),
    ("eagle3_reduced", "d2t", (224,)),
    ("eagle3_reduced", "t2d", (256,)),
    ("peagle", "mask_hidden", (1, 1, 192)),
    ("dflash", "layers.1.self_attn.k_norm.weight", (32,)),
    ("dflash_reduced", "lm_head.weight", (224, 64)),
    ("medusa", "blocks.2.layers.0.weight", (64, 64)),
    ("medusa", "lm_heads.2.weight", (256, 64)),
    ("medusa_original", "2.0.linear.weight", (64, 64)),
    ("medusa_original", "2.0.linear.bias", (64,)),
    ("medusa_original", "2.1.weight", (256, 64)),
    ("mimo", "model.layers.0.self_attn.k_proj.bias", (32,)),
    ("mimo", "model.mtp_layers.0.input_proj.weight", (64, 128)),
    ("mimo", "model.mtp_layers.0.token_layernorm.weight", (64,)),
    ("mimo", "model.mtp_layers.0.hidden_layernorm.weight", (64,)),
    ("mimo", "model.mtp_layers.0.final_layernorm.weight", (64,)),
    ("deepseek", "model.layers.0.self_attn.q_a_proj.weight", (32, 64)),
    ("deepseek", "model.layers.0.self_attn.kv_a_proj_with_mqa.weight", (576, 64)),
    ("deepseek", "model.layers.0.self_attn.kv_b_proj.weight", (96, 512)),
    ("deepseek", "model.layers.2.eh_proj.weight", (64, 128)),
    ("deepseek", "model.layers.2.enorm.weight", (64,)),
    ("deepseek", "model.layers.2.hnorm.weight", (64,)),
    ("deepseek", "model.layers.2.shared_head.norm.weight", (64,)),
    ("deepseek", "model.layers.2.shared_head.head.weight", (256, 64)),
    ("deepseek", "model.layers.2.embed_tokens.weight", (256, 64)),
    ("deepseek_experts", "model.layers.2.mlp.experts.7.down_proj.weight", (64, 48)),
    ("deepseek_experts", "model.layers.1.mlp.shared_experts.up_proj.weight", (48, 64)),
    ("deepseek_experts", "model.layers.1.mlp.gate.e_score_correction_bias", (8,)),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("cycle"))


@pytest.fixture(scope="module")
def plain(built):
    return [list(out.outputs[0].token_ids) for out in complete(built["target"])[0]]


def complete(model, drafter=None):
    llm = LLM(model, speculative_config=drafter, max_model_len=128)
    return llm.generate(PROMPTS, PARAMS, use_tqdm=False), llm.counters


def hashes(folder):
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def test_a_seed_gives_the_same_bytes_every_time(built, tmp_path):
    first = hashes(built["target"].parent)
    build(tmp_path / "same")
    build(tmp_path / "other", seed=1)
    assert len(first) == 4 * len(ARCHITECTURES)
    assert hashes(tmp_path / "same") == first
    other = hashes(tmp_path / "other")
    assert all(other[name] != first[name] for name in first if name.endswith("safetensors"))


def test_all_together_are_a_few_megabytes(built):
    files = [file for folder in built.values() for file in folder.iterdir()]
    assert sum(file.stat().st_size for file in files) < 1.3e7


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_config_says_what_the_weights_are(built, name):
    architecture, model_type, layers, tensors = ARCHITECTURES[name]
    config = json.loads((built[name] / "config.json").read_text())
    assert config["architectures"] == [architecture]
    assert config["model_type"] == model_type
    assert config["num_hidden_layers"] == layers
    assert (config["hidden_size"], config["vocab_size"]) == (HIDDEN, VOCAB)
    weights = load_file(built[name] / "model.safetensors")
    assert len(weights) == tensors
    kinds = {"d2t": np.int64, "t2d": np.bool_}
    assert all(value.dtype == kinds.get(key, np.float32) for key, value in weights.items())


@pytest.mark.parametrize(("name", "tensor", "shape"), TENSORS)
def test_tensors_have_the_names_and_shapes_of_their_format(built, name, tensor, shape):
    assert load_file(built[name] / "model.safetensors")[tensor].shape == shape


def test_the_permutation_is_made_of_cycles():
    follow, ahead = draw(0).follow, np.arange(VOCAB)
    for step in range(1, CYCLE + 1):
        ahead = follow[ahead]
        assert (ahead == np.arange(VOCAB)).all() == (step == CYCLE)


@pytest.mark.parametrize(
    ("name", "prefix", "steps"),
    [("target", "lm_head", 1), *(("medusa", f"lm_heads.{i}", i + 2) for i in range(3))],
)
def test_the_head_row_of_a_follower_is_the_embedding(built, name, prefix, steps):
    embed = load_file(built["target"] / "model.safetensors")["model.embed_tokens.weight"]
    ahead = np.arange(VOCAB)
    for _ in range(steps):
        ahead = draw(0).follow[ahead]
    rows = load_file(built[name] / "model.safetensors")[f"{prefix}.weight"]
    np.testing.assert_array_equal(rows[ahead], embed)


def test_a_reduced_vocabulary_maps_back_to_the_targets(built):
    target = load_file(built["target"] / "model.safetensors")
    reduced = load_file(built["eagle3_reduced"] / "model.safetensors")
    kept = np.arange(len(reduced["d2t"])) + reduced["d2t"]
    np.testing.assert_array_equal(kept, np.flatnonzero(reduced["t2d"]))
    np.testing.assert_array_equal(reduced["lm_head.weight"], target["lm_head.weight"][kept])


def test_the_text_follows_the_cycle_mostly_but_not_always(plain):
    texts = [prompt["prompt_token_ids"] + text for prompt, text in zip(PROMPTS, plain, strict=True)]
    tokens = np.array(texts)[:, 11:]
    deviates = draw(0).follow[tokens[:, :-1]] != tokens[:, 1:]
    assert 0.05 < deviates.mean() < 0.4


def test_the_draft_is_accepted_in_part_and_the_text_stays(built, plain):
    drafter = {"model": str(built["draft"]), "num_speculative_tokens": 3}
    outputs, counters = complete(built["target"], drafter)
    assert [list(out.outputs[0].token_ids) for out in outputs] == plain
    assert 0.25 < counters.acceptance_rate < 0.95


CHOICES = "[(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]"
BEST = {"tree": {"depth": 3, "top_k": 2, "num_nodes": 6}}
GROWN = {  # and the least tokens per round
    "eagle": (BEST, 2),
    "medusa": ({"speculative_token_tree": CHOICES}, 2),
    "dflash": (BEST, 1.7),  # DDTree, by a head that was made for blocks of 2
}


@pytest.mark.parametrize("name", GROWN)
def test_a_head_grows_trees_that_are_accepted_and_the_text_stays(built, plain, name):
    head = {"model": str(built[name]), "method": name}
    tree, least = GROWN[name]
    outputs, counters = complete(built["target"], {**head, **tree})
    assert [list(out.outputs[0].token_ids) for out in outputs] == plain
    assert counters.num_draft_tokens == 6 * counters.num_drafts
    assert len(counters.num_accepted_tokens_per_pos) == 3
    chain = complete(built["target"], {**head, "num_speculative_tokens": 3})[1]
    assert counters.mean_acceptance_length > max(chain.mean_acceptance_length, least)
