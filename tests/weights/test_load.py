"""What a checkpoint may look like on disk, and that loading it gives the same weights."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specjax.models.build import shapes
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from tests.weights import tiny


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A Qwen2 folder with tied embeddings, its config and its weights."""
    folder = tiny.save(tiny.reference("qwen2-tied")[0], tmp_path_factory.mktemp("plain"))
    config, _ = read_config(folder)
    return folder, config, load_params(folder, config)


@pytest.fixture
def copy(plain, tmp_path):
    """The same folder, to be changed: (folder, its tensors)."""
    shutil.copytree(plain[0], tmp_path, dirs_exist_ok=True)
    return tmp_path, load_file(tmp_path / "model.safetensors")


def assert_same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_weights_have_the_shapes_the_model_declares(variant, tmp_path):
    config, _ = read_config(tiny.save(tiny.reference(variant)[0], tmp_path))
    params = load_params(tmp_path, config)
    assert jax.tree.structure(params) == jax.tree.structure(shapes(config))
    jax.tree.map(
        lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype) or 1 / 0, params, shapes(config)
    )


def test_shards_give_the_same_weights(plain, tmp_path):
    _, config, params = plain
    tiny.save(tiny.reference("qwen2-tied")[0], tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert not (tmp_path / "model.safetensors").exists()
    assert_same(load_params(tmp_path, config), params)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_half_precision_is_converted_value_by_value(plain, copy, stored, dtype):
    folder, tensors = copy
    halved = {name: value.to(stored) for name, value in tensors.items()}
    save_file(halved, folder / "model.safetensors")
    config, _ = read_config(folder, dtype)
    found = load_params(folder, config)["layers"][1]["mlp"]["up_proj"]["weight"]
    expected = halved["model.layers.1.mlp.up_proj.weight"].to(getattr(torch, dtype)).float()
    assert found.dtype == jnp.dtype(dtype)
    np.testing.assert_array_equal(np.asarray(found.astype(jnp.float32)), expected.numpy())


def test_a_tied_head_may_be_stored_as_an_equal_copy(plain, copy):
    folder, tensors = copy
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    assert_same(load_params(folder, plain[1]), plain[2])


def test_names_without_the_head_s_prefix_are_understood(plain, copy):
    folder, tensors = copy
    bare = {name.removeprefix("model."): value for name, value in tensors.items()}
    save_file(bare, folder / "model.safetensors")
    assert_same(load_params(folder, plain[1]), plain[2])


def test_old_rotary_buffers_are_ignored(plain, copy):
    folder, tensors = copy
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(6)
    save_file(tensors, folder / "model.safetensors")
    assert_same(load_params(folder, plain[1]), plain[2])


def test_weights_go_where_they_are_sent(plain):
    folder, config, params = plain
    device = jax.devices()[-1]
    found = load_params(folder, config, device)
    assert {leaf.device for leaf in jax.tree.leaves(found)} == {device}
    assert_same(found, params)


def test_a_tensor_larger_than_the_buffer_arrives_whole(plain, monkeypatch):
    monkeypatch.setattr("specjax.weights.reader.PIECE", 100)
    folder, config, params = plain
    assert_same(load_params(folder, config), params)


def test_loaded_weights_are_ours_not_the_files(plain, copy):
    folder, _ = copy
    params = load_params(folder, plain[1])
    size = (folder / "model.safetensors").stat().st_size
    (folder / "model.safetensors").write_bytes(b"\0" * size)
    assert_same(params, plain[2])
