"""Heads load in vLLM's formats; a head of another target is refused in words that help."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax import LLM, SamplingParams
from specjax.models.build import build_stages
from specjax.weights.head_configs import read_head_config
from specjax.weights.heads import load_head
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from tests.checkpoints.cycle import build
from tests.checkpoints.language import HIDDEN, VOCAB
from tests.checkpoints.speculator import STAGES, write_lstm, write_speculator


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("cycle"))


@pytest.fixture(scope="module")
def target(built):
    config, _ = read_config(built["target"])
    return config, load_params(built["target"], config)


def changed(source, folder, facts=None, tensors=None, without=()):
    """Copy a head with other facts and tensors."""
    shutil.copytree(source, folder)
    config = json.loads((source / "config.json").read_text()) | (facts or {})
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(source / "model.safetensors") | (tensors or {})
    kept = {name: value for name, value in weights.items() if name not in without}
    save_file(kept, folder / "model.safetensors")
    return folder


def load(folder, method, target):
    config = read_head_config(folder, method, target[0])
    return load_head(folder, method, config, target[1])


def test_what_a_head_leaves_out_is_the_targets_own_array(built, target, tmp_path):
    params = load(built["eagle"], "eagle", target)
    assert params["embed_tokens"]["weight"] is target[1]["embed_tokens"]["weight"]
    assert params["lm_head"]["weight"] is target[1]["lm_head"]["weight"]
    own = np.ones((VOCAB, HIDDEN), np.float32)
    tensors = {"embed_tokens.weight": own, "lm_head.weight": 2 * own}
    params = load(changed(built["eagle"], tmp_path / "a", tensors=tensors), "eagle", target)
    assert (params["embed_tokens"]["weight"] == 1).all()
    assert (params["lm_head"]["weight"] == 2).all()


def test_both_layouts_of_medusa_hold_the_same(built, target):
    new, original = (load(built[name], "medusa", target) for name in ("medusa", "medusa_original"))
    stored = load_file(built["medusa_original"] / "model.safetensors")
    assert jax.tree.map(jnp.shape, new["lm_heads"]) == jax.tree.map(jnp.shape, original["lm_heads"])
    block = original["blocks"][2]["layers"][0]
    np.testing.assert_array_equal(block["weight"], stored["2.0.linear.weight"])
    np.testing.assert_array_equal(block["bias"], stored["2.0.linear.bias"])


def test_a_reduced_vocabulary_says_which_row_each_token_has(built, target):
    params = load(built["eagle3_reduced"], "eagle3", target)
    stored = load_file(built["eagle3_reduced"] / "model.safetensors")
    tokens = np.arange(len(stored["d2t"])) + stored["d2t"]
    np.testing.assert_array_equal(np.asarray(params["vocab_rows"])[tokens], np.arange(len(tokens)))
    assert (np.asarray(params["vocab_rows"])[~stored["t2d"]] == len(tokens)).all()


@pytest.mark.parametrize(
    ("method", "name", "facts", "message"),
    [
        ("eagle", "eagle", {"hidden_size": 128}, "hidden_size is 128, this target's is 64"),
        ("eagle", "eagle", {"vocab_size": 512}, "vocab_size is 512, this target's is 256"),
        ("eagle", "eagle", {"architectures": ["EagleMiniCPMForCausalLM"]}, "unknown architecture"),
        ("eagle", "eagle", {"intermediate_size": 32}, "do not match its config.json"),
        ("eagle", "eagle3", {}, "unknown architecture"),
        ("eagle3", "eagle3", {"target_hidden_size": 96}, "hidden_size is 96"),
        (
            "eagle3",
            "eagle3",
            {"eagle_aux_hidden_state_layer_ids": [1, 9]},
            "of a target that has 8",
        ),
        ("eagle3", "eagle3", {"num_aux_hidden_states": 2}, "num_aux_hidden_states is 2"),
        ("eagle3", "eagle3", {"num_hidden_layers": 2}, "missing .* layers"),
        ("eagle3", "eagle3_reduced", {"draft_vocab_size": 200}, "misshapen"),
        ("medusa", "medusa", {"truncated_vocab_size": 257}, "=257 is more than vocab_size=256"),
        ("medusa", "medusa", {"truncated_vocab_size": 99}, "needs token_map, .* got nothing"),
        ("medusa", "medusa", {"num_heads": None}, "num_heads must be at least 1, got None"),
        ("medusa", "medusa", {"num_heads": 4}, "missing"),
        ("mlp_speculator", "medusa", {}, "emb_dim must be at least 1, got None"),
        ("mtp", "target", {}, "has no MTP layers"),
        ("eagle3", "eagle3_latent", {"norm_before_fc": True}, "norm_before_fc is not of a head"),
        ("eagle3", "eagle3_latent", {"kv_lora_rank": 64}, "misshapen"),
        ("eagle3", "eagle3", {"logit_scale": 0.5}, "logit_scale = 0.5 is not implemented"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_by_name(
    built, target, tmp_path, method, name, facts, message
):
    folder = changed(built[name], tmp_path / "head", facts)
    with pytest.raises(ValueError, match=message) as raised:
        load(folder, method, target)
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize("token", [VOCAB, 1])
def test_a_d2t_that_leaves_the_vocabulary_or_repeats_a_token_is_refused(
    built, target, tmp_path, token
):
    d2t = load_file(built["eagle3_reduced"] / "model.safetensors")["d2t"].copy()
    d2t[-1] = token - (len(d2t) - 1)
    d2t[0] = 1
    folder = changed(built["eagle3_reduced"], tmp_path / "head", tensors={"d2t": d2t})
    with pytest.raises(ValueError, match="d2t must name 224 different tokens below 256"):
        load(folder, "eagle3", target)


def test_a_reduced_vocabulary_without_its_map_is_refused(built, target, tmp_path):
    folder = changed(built["eagle3_reduced"], tmp_path / "head", without=("d2t",))
    with pytest.raises(ValueError, match="needs d2t"):
        load(folder, "eagle3", target)


TOKEN_MAP = np.random.default_rng(6).permutation(VOCAB)[:200]


@pytest.mark.parametrize("stored", ["whole", "cut", "shared", "target's"])
def test_medusa_of_a_reduced_vocabulary_names_its_tokens_only(built, target, tmp_path, stored):
    """As in vLLM: the LM heads are stored whole or cut to the token_map, one each or one."""
    heads = {f"lm_heads.{i}.weight" for i in range(3)}
    weights = load_file(built["medusa"] / "model.safetensors")
    facts = {"truncated_vocab_size": len(TOKEN_MAP)}
    tensors, without = {"token_map": TOKEN_MAP}, set()
    if stored == "cut":
        tensors |= {head: weights[head][TOKEN_MAP] for head in heads}
    if stored in ("shared", "target's"):
        facts, without = facts | {"original_lm_head": True}, heads
    if stored == "shared":
        tensors["lm_head.weight"] = weights["lm_heads.0.weight"]
    folder = changed(built["medusa"], tmp_path / "head", facts, tensors, without)
    config, params = read_head_config(folder, "medusa", target[0]), load(folder, "medusa", target)
    stages = build_stages(config)
    hidden = np.random.default_rng(7).standard_normal((5, HIDDEN)).astype(np.float32)
    for stage in range(3):
        _, logits = stages.step(
            params, jnp.asarray(hidden), jnp.zeros(len(hidden), jnp.int32), stage
        )
        x = hidden @ weights[f"blocks.{stage}.layers.0.weight"].T
        head = {"shared": weights["lm_heads.0.weight"], "target's": target[1]["lm_head"]["weight"]}
        full = (hidden + x / (1 + np.exp(-x))) @ np.asarray(
            head.get(stored, weights[f"lm_heads.{stage}.weight"])
        ).T
        np.testing.assert_allclose(logits[:, TOKEN_MAP], full[:, TOKEN_MAP], rtol=1e-4, atol=1e-5)
        rest = np.setdiff1d(np.arange(VOCAB), TOKEN_MAP)
        assert (np.asarray(logits)[:, rest] <= -1e30).all()


def test_more_tokens_than_heads_are_refused_before_any_weight_is_read(built):
    config = {"model": str(built["medusa"]), "num_speculative_tokens": 4}
    with pytest.raises(ValueError, match="num_speculative_tokens=4 is more than the 3 tokens"):
        LLM(built["target"], speculative_config=config)


def test_more_tokens_than_mtp_layers_must_be_a_multiple_of_them(built, tmp_path):
    folder = changed(built["mimo"], tmp_path / "mimo", {"num_nextn_predict_layers": 2})
    config = {"method": "mtp", "num_speculative_tokens": 3}
    with pytest.raises(ValueError, match=r"=3 must be divisible by the 2 tokens .* use 2"):
        LLM(folder, speculative_config=config)


def test_an_mlp_speculator_is_found_by_its_config_and_leaves_the_text(built, tmp_path):
    folder = write_speculator(tmp_path / "head", tied=True, scale_input=True)
    params = SamplingParams(temperature=0.8, max_tokens=24, seed=3, ignore_eos=True)
    prompt = {"prompt_token_ids": [5, 7, 11]}
    plain, llm = (
        LLM(built["target"], speculative_config=config, max_model_len=64)
        for config in (None, {"model": str(folder)})
    )
    assert llm.core.speculative_config.num_speculative_tokens == STAGES
    said, spoken = (one.generate(prompt, params, use_tqdm=False) for one in (plain, llm))
    assert said[0].outputs[0].token_ids == spoken[0].outputs[0].token_ids


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"method": "sum_rnn"}, "method='sum_rnn' of Arctic's speculator is not implemented"),
        ({"tie_lstm_embs": False}, "tie_lstm_embs=False of Arctic's speculator"),
        ({"tie_weights": False}, "tie_weights=False of Arctic's speculator"),
        ({"inner_dim": "48.48"}, r"one size for its state.*'inner_dim': '48\.48'"),
        ({"emb_dim": "32"}, "one size for its state"),
        ({"input_hidden_dim": 32}, "hidden_size is 32, this target's is 64"),
    ],
)
def test_an_lstm_speculator_that_arctic_itself_cannot_run_is_refused_by_name(
    target, tmp_path, facts, message
):
    folder = write_lstm(tmp_path / "lstm", **facts)
    with pytest.raises(ValueError, match=message):
        read_head_config(folder, "mlp_speculator", target[0])
