"""LLM with mixtures of experts and the drafters that are published for them."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from specjax import LLM, SamplingParams
from specjax.models.build import init_params
from specjax.models.config import FeatureConfig, ModelConfig, Yarn
from specjax.weights.head_configs import read_head_config
from specjax.weights.heads import lent, name, paths
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from specjax.weights.save_heads import save_head
from tests.weights import tiny
from tests.weights.test_mtp import add_layer

PROMPTS = [{"prompt_token_ids": [5, 6, 7] * 4}, {"prompt_token_ids": list(range(40, 70))}]
BLOCK = ModelConfig(  # EAGLE-3's is Llama's, without experts, windows and sinks
    vocab_size=260, hidden_size=48, intermediate_size=80, num_layers=1, num_heads=4,
    num_kv_heads=2, head_dim=16, max_position_embeddings=512, tie_word_embeddings=False,
)  # fmt: skip
YARN = tiny.YARN | {"truncate": False}
EAGLE3 = {  # a target's variant: what its heads' config.json has, fields of the head
    "gpt-oss": ({"rope_scaling": YARN, "rope_theta": YARN["rope_theta"]}, {"taps": (1, 2)}),
    "qwen3-moe": ({}, {"taps": (1, 2, 3), "draft_vocab_size": 200}),
}


def checkpoint(variant, pair, folder):
    """Write a target with a tokenizer; return transformers' model."""
    model = tiny.build(variant, vocab_size=260, max_position_embeddings=512)
    tiny.save(model, folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{pair.target}/{file}", folder)
    return model


def eagle3(variant, folder, head):
    """Write an EAGLE-3 head for a target, with random weights and the tapped layers inside."""
    facts, fields = EAGLE3[variant]
    config, _ = read_config(folder)
    own = FeatureConfig(kind="eagle3", block=BLOCK, target_size=config.hidden_size, **fields)
    shared = set(lent(own, load_params(folder, config)))
    fresh = paths(init_params(own, jax.random.key(1))).items()
    kept = None if own.draft_vocab_size is None else np.arange(own.draft_vocab_size) + 7
    ours = {name(p): x for p, x in fresh if p not in shared and p != ("vocab_rows",)}
    head.mkdir()
    save_head(head, "eagle3", own, ours, kept, dtype="float32")
    raw = json.loads((head / "config.json").read_text())
    taps = raw.pop("eagle_aux_hidden_state_layer_ids")
    inside = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": taps}}
    (head / "config.json").write_text(json.dumps(raw | facts | inside))
    return own


def texts(llm, prompts):
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    return [one.outputs[0].token_ids for one in llm.generate(prompts, params, use_tqdm=False)]


def assert_drafts(folder, config):
    """Drafts are verified, and the text is that of plain decoding, in a batch and alone."""
    facts = {"batch_invariant": True, "max_model_len": 128}
    plain, drafted = LLM(folder, **facts), LLM(folder, speculative_config=config, **facts)
    expected = [texts(plain, [one])[0] for one in PROMPTS]
    assert texts(drafted, PROMPTS) == expected
    assert drafted.counters.num_draft_tokens > 20


@pytest.mark.parametrize("variant", EAGLE3)
def test_eagle3_drafts_for_a_mixture_of_experts(variant, pair, tmp_path):
    folder, head = tmp_path / "target", tmp_path / "head"
    checkpoint(variant, pair, folder)
    own = eagle3(variant, folder, head)
    read = read_head_config(head, "eagle3", read_config(folder)[0])
    scaling = Yarn(
        factor=4.0, original_max_position_embeddings=16, beta_fast=1.0, beta_slow=0.25,
        truncate=False,
    )  # fmt: skip
    if variant == "gpt-oss":  # the head's RoPE is its own config's
        rope = dataclasses.replace(BLOCK.rope, theta=100.0, scaling=scaling)
        own = dataclasses.replace(own, block=dataclasses.replace(BLOCK, rope=rope))
    assert read == own
    config = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 2}
    assert_drafts(str(folder), config)


@pytest.mark.parametrize("variant", ["glm4-moe", "deepseek-v32"])
def test_its_own_mtp_layer_drafts_for_a_mixture_of_experts(variant, pair, tmp_path):
    model = checkpoint(variant, pair, tmp_path)
    tiny.edit_config(tmp_path, num_nextn_predict_layers=1)
    add_layer(tmp_path, model, stacked=False)
    assert_drafts(str(tmp_path), {"method": "mtp", "num_speculative_tokens": 2})
