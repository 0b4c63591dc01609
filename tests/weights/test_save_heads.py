"""What is written of a head is what is read: config, weights, reduced vocabulary."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from specjax.engine.options.methods import infer_method
from specjax.models.build import init_params
from specjax.models.config import FeatureConfig, MedusaConfig, ModelConfig, SpeculatorConfig
from specjax.weights.head_configs import read_head_config
from specjax.weights.heads import assemble, lent, load_head, name, paths, read_head
from specjax.weights.save_heads import save_head

VOCAB, SIZE = 64, 16
TARGET = ModelConfig(
    vocab_size=VOCAB, hidden_size=SIZE, intermediate_size=24, num_layers=6, num_heads=2,
    num_kv_heads=1, head_dim=8, max_position_embeddings=32, qk_norm=True,
    tie_word_embeddings=True,
)  # fmt: skip
LLAMA = dataclasses.replace(TARGET, num_layers=1, qk_norm=False, tie_word_embeddings=False)
EAGLE3 = FeatureConfig(kind="eagle3", block=LLAMA, target_size=SIZE, taps=(1, 2, 3))
HEADS = {
    "eagle": FeatureConfig(kind="eagle", block=LLAMA, target_size=SIZE),
    "eagle3": EAGLE3,
    "eagle3 of fewer tokens": dataclasses.replace(
        EAGLE3, draft_vocab_size=40, norm_before_residual=True, fc_norm=True, norm_output=True
    ),
    "mtp": FeatureConfig(
        kind="mtp",
        block=dataclasses.replace(TARGET, num_layers=1),
        target_size=SIZE,
        hidden_first=True,
        taps=(6,),
    ),
    "mtp of its own sizes": FeatureConfig(
        kind="mtp",
        block=dataclasses.replace(
            TARGET, num_layers=1, num_heads=4, num_kv_heads=2, intermediate_size=12
        ),
        target_size=SIZE,
        hidden_first=True,
        taps=(6,),
    ),
    "medusa": MedusaConfig(num_heads=3, num_layers=2, hidden_size=SIZE, vocab_size=VOCAB),
    "medusa of one LM head": MedusaConfig(
        num_heads=3, num_layers=1, hidden_size=SIZE, vocab_size=VOCAB, bias=True, shared_head=True
    ),
    "mlp_speculator": SpeculatorConfig(
        num_stages=3, hidden_size=SIZE, inner_size=20, vocab_size=VOCAB
    ),
    "mlp_speculator of one stage": SpeculatorConfig(
        num_stages=3, hidden_size=SIZE, inner_size=SIZE, vocab_size=VOCAB, tied=True,
        scale_input=True,
    ),
}  # fmt: skip


def owned(config, target):
    """Draw what a head brings itself, in bfloat16's numbers."""
    shared = set() if isinstance(config, MedusaConfig) else set(lent(config, target))
    fresh = paths(init_params(config, jax.random.key(1)))
    own = {
        name(path): value.astype(jnp.bfloat16).astype(jnp.float32)
        for path, value in fresh.items()
        if path not in shared and path != ("vocab_rows",)
    }
    if getattr(config, "tied", False):
        own = {k: v for k, v in own.items() if ".0." in k or k == "stages.1.proj.weight"}
    return own


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_is_read_back_as_it_was_written(kind, tmp_path):
    config, method = HEADS[kind], kind.split()[0]
    target = init_params(TARGET, jax.random.key(0))
    own = owned(config, target)
    reduced = isinstance(config, FeatureConfig) and config.draft_vocab_size is not None
    kept = np.sort(np.random.default_rng(0).permutation(VOCAB)[:40]) if reduced else None
    save_head(tmp_path / "head", method, config, own, kept)
    assert {file.name for file in (tmp_path / "head").iterdir()} == {
        *("config.json", "model.safetensors")
    }
    assert infer_method(str(tmp_path / "head")) == method
    assert read_head_config(tmp_path / "head", method, TARGET) == config
    read, tokens = read_head(tmp_path / "head", method, config, target)
    assert (tokens is None) if kept is None else (tokens == kept).all()
    assert read.keys() == own.keys()
    for path in own:
        np.testing.assert_array_equal(read[path], own[path])
    params = load_head(tmp_path / "head", method, config, target)
    vocab_rows = params.get("vocab_rows")
    for one, other in zip(
        jax.tree.leaves(params),
        jax.tree.leaves(assemble(config, own, target, vocab_rows)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_the_tensors_have_the_names_that_vllm_reads(tmp_path):
    target, names = init_params(TARGET, jax.random.key(0)), {}
    for kind in ("eagle3 of fewer tokens", "mtp", "medusa of one LM head", "mlp_speculator"):
        kept = np.arange(40) if "fewer" in kind else None
        save_head(tmp_path, kind.split()[0], HEADS[kind], owned(HEADS[kind], target), kept)
        with safe_open(tmp_path / "model.safetensors", "numpy") as file:
            names[kind.split()[0]] = set(file.keys())
    assert {"fc.weight", "midlayer.hidden_norm.weight", "d2t", "t2d"} < names["eagle3"]
    assert {
        *("model.mtp_layers.0.input_proj.weight", "model.mtp_layers.0.token_layernorm.weight"),
        *("model.mtp_layers.0.self_attn.q_proj.weight",),
        *("model.mtp_layers.0.final_layernorm.weight",),
    } < names["mtp"]
    assert {"blocks.2.layers.0.bias", "lm_heads.0.weight"} < names["medusa"]
    assert {"speculator.emb.0.weight", "speculator.ln.2.bias"} < names["mlp_speculator"]


def test_a_head_that_is_not_finite_is_not_written(tmp_path):
    config = HEADS["medusa"]
    own = owned(config, init_params(TARGET, jax.random.key(0)))
    own["lm_heads.1.weight"] = own["lm_heads.1.weight"].at[0, 0].set(jnp.nan)
    with pytest.raises(ValueError, match=r"lm_heads\.1\.weight is not finite"):
        save_head(tmp_path / "head", "medusa", config, own)
    assert not (tmp_path / "head").exists()
