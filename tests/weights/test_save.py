"""A decoder of any architecture is saved and loaded again, by specjax and by transformers."""

import jax
import numpy as np
import pytest
import torch
import transformers

from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from specjax.weights.save import save_as
from tests.weights import tiny

TOLERANCE = 2e-4  # transformers sums a checkpoint's products in its own order


def assert_same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("variant", list(tiny.VARIANTS))
def test_every_architecture_is_saved_and_loaded_again(variant, tmp_path):
    model, expected = tiny.reference(variant)
    source, folder = tiny.save(model, tmp_path / "source"), tmp_path / "saved"
    config, _ = read_config(source)
    params = load_params(source, config)
    save_as(folder, source, config, params, dtype="float32")
    again, _ = read_config(folder)
    assert again == config
    assert_same_bits(load_params(folder, again), params)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    np.testing.assert_allclose(tiny.logits(theirs), expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"}


def test_a_weight_that_is_not_finite_is_not_saved(tmp_path):
    source = tiny.save(tiny.reference("llama2")[0], tmp_path / "source")
    config, _ = read_config(source)
    params = load_params(source, config)
    params["norm"]["weight"] = params["norm"]["weight"].at[0].set(np.nan)
    with pytest.raises(ValueError, match=r"weight norm\.weight is not finite"):
        save_as(tmp_path / "saved", source, config, params)
    assert not (tmp_path / "saved").exists()
