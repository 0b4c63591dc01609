"""Damaged and contradictory checkpoints: one clear error each, before any data is read."""

import json
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from specjax import LLM, bundled
from specjax.weights import load
from specjax.weights.hf_config import read_config
from tests.weights import tiny

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return tiny.save(tiny.reference("qwen2-tied")[0], tmp_path_factory.mktemp("pristine"))


@pytest.fixture(scope="module")
def pristine_shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    return tiny.save(tiny.reference("qwen2-tied")[0], folder, max_shard_size="50KB")


@pytest.fixture
def folder(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def shards(pristine_shards, tmp_path):
    return shutil.copytree(pristine_shards, tmp_path, dirs_exist_ok=True)


def refuse(folder, message):
    with pytest.raises(ValueError, match=message):
        load.load_params(folder, read_config(folder)[0])


def edit(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_index(folder, change):
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    change(index["weight_map"])
    file.write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(UP), rf"missing 1: {UP}"),
        (lambda t: t.update(novel=torch.ones(2)), r"unexpected 1: model\.novel"),
        (
            lambda t: t.update({UP: t[UP].T.contiguous()}),
            rf"{UP} is \[48, 80\], expected",
        ),
        (lambda t: t.update({UP: t[UP].reshape(-1)}), rf"{UP} is \[3840\], expected \[80, 48\]"),
        (lambda t: t.update({UP: t[UP].to(torch.int32)}), rf"not F32/F16/BF16 1: {UP} is I32"),
        (lambda t: t.update({UP: t[UP].double()}), rf"{UP} is F64; store these as F32"),
        (
            lambda t: t.update({UP: t[UP].to(torch.float8_e4m3fn)}),
            rf"{UP} is F8_E4M3; config.json does not say how they are quantized",
        ),
        (
            lambda t: t.update({UP: t[UP].to(torch.int8)}),
            rf"{UP} is I8; .* use the checkpoint as it was before",
        ),
        (lambda t: [t.pop(n) for n in list(t) if "mlp" in n], r"missing 6: .*, and 1 more"),
        (lambda t: (t.pop(UP), t.update(extra=torch.ones(1))), rf"missing 1: {UP}; unexpected 1"),
    ],
)
def test_names_and_shapes_are_checked_before_data(folder, change, message, monkeypatch):
    edit(folder, change)
    monkeypatch.setattr(load, "read_tensor", lambda *_: pytest.fail("data was read"))
    refuse(folder, message)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_value_that_is_no_number_is_named(folder, value, dtype):
    def change(tensors):
        tensors[UP] = tensors[UP].to(dtype)
        tensors[UP][-1, -1] = value

    edit(folder, change)
    refuse(folder, rf"{UP} in .* holds NaN or infinity")


def test_a_value_too_large_for_float16_is_named(folder):
    edit(folder, lambda tensors: tensors[UP].fill_(1e5))
    with pytest.raises(ValueError, match=rf"{UP} .* does not fit float16"):
        load.load_params(folder, read_config(folder, "half")[0])


def test_a_tied_head_that_differs_is_an_error(folder):
    edit(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))
    refuse(folder, "embeddings are tied, but lm_head.weight is not model.embed_tokens.weight")


def test_an_untied_model_needs_its_head(folder):
    tiny.edit_config(folder, tie_word_embeddings=False)
    refuse(folder, r"missing 1: lm_head\.weight")


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 96},
        {"num_hidden_layers": 1, "layer_types": None},
        {"num_key_value_heads": 4},
    ],
    ids=str,
)
def test_a_config_of_another_size_is_an_error(folder, change):
    tiny.edit_config(folder, **change)
    refuse(folder, "do not match its config.json")


@pytest.mark.parametrize("size", [0, 4, 200, -1])
def test_a_truncated_file_is_an_error(folder, size):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    refuse(folder, r"model\.safetensors is (truncated|not a whole safetensors file)")


def test_trailing_bytes_are_an_error(folder):
    with (folder / "model.safetensors").open("ab") as handle:
        handle.write(b"\0")
    refuse(folder, "truncated or overlong")


def test_a_git_lfs_pointer_is_an_error(folder):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    refuse(folder, "git-lfs pointer")


def test_layers_that_are_declared_and_not_stored_are_refused_at_once(tmp_path):
    folder = shutil.copytree(bundled.resolve("bundled"), tmp_path / "deep")
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 10**6}
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="declares 1000000 layers, its weights end after 8"):
        LLM(folder)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ('{"a": {}}', "damaged safetensors header"),
        ("[]", "damaged safetensors header"),
        ("{", "damaged safetensors header"),
        ('{"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}', "does not take 8 bytes"),
        ('{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}', "damaged"),
        ('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}', "overlaps or gaps"),
        (
            '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
            ' "a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
            "a appears twice",
        ),
        ("[" * 200_000, "damaged safetensors header"),
    ],
)
def test_a_damaged_header_is_an_error(folder, header, message):
    text = header.encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    refuse(folder, message)


def test_a_header_of_very_many_tensors_is_checked_at_once(folder):
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    text = json.dumps({f"model.layers.1.novel.{i}": empty for i in range(50_000)}).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    start = time.thread_time()
    refuse(folder, r"unexpected 50000: model\.layers\.1\.novel\.0, ")
    assert time.thread_time() - start < 10  # 45 s when each name was sought in a list


def test_a_missing_shard_is_named(shards):
    gone = sorted(shards.glob("model-*.safetensors"))[0]
    gone.unlink()
    refuse(shards, rf"lacks shards its index names: {gone.name}")


def test_a_tensor_in_two_shards_is_an_error(shards):
    first, second = sorted(shards.glob("model-*.safetensors"))[:2]
    name = next(iter(load_file(first)))
    save_file(load_file(second) | {name: torch.ones(1)}, second)
    refuse(shards, f"holds {name} twice, in {first.name} and {second.name}")


def test_an_index_that_contradicts_its_shards_is_an_error(shards):
    first, second = sorted(shards.glob("model-*.safetensors"))[:2]
    name = next(iter(load_file(first)))
    edit_index(shards, lambda placed: placed.update({name: second.name}))
    refuse(shards, f"says of {name}: {second.name}, not {first.name}")


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/passwd", "a/b", "..", "", "a\\b", 3])
def test_an_index_cannot_leave_its_folder(shards, shard):
    edit_index(shards, lambda placed: placed.update({UP: shard}))
    refuse(shards, "names a shard outside its folder")


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"weight_map": []}', '{"weight_map": {}}', "[" * 200_000]
)
def test_a_damaged_index_is_an_error(shards, text):
    (shards / "model.safetensors.index.json").write_text(text)
    refuse(shards, r"index\.json (is not a checkpoint index|names no shards)")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "medusa_lm_head.pt", "consolidated.00.pth"])
def test_pickled_weights_name_the_converter(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    refuse(folder, rf"holds {name} but no safetensors; run `specjax convert .* DESTINATION`")


def test_no_weights_at_all_is_an_error(folder):
    (folder / "model.safetensors").unlink()
    refuse(folder, r"holds no weights: neither model\.safetensors nor")
