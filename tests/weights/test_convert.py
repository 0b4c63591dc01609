"""Pickled weights become safetensors, whole or not at all."""

import json
import shutil
import sys

import jax
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from specjax.weights.convert import convert
from specjax.weights.head_configs import read_head_config
from specjax.weights.heads import load_head
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from tests.checkpoints.cycle import build
from tests.weights import tiny


@pytest.fixture
def pickled(tmp_path):
    """An OPT folder as PyTorch saved it: the tied head shares the embeddings' memory."""
    folder = tmp_path / "source"
    model = tiny.reference("opt")[0]
    tiny.save(model, folder)
    (folder / "model.safetensors").rename(tmp_path / "original.safetensors")
    torch.save(dict(model.state_dict()), folder / "pytorch_model.bin")
    (folder / "vocab.json").write_text("{}")
    (folder / "merges.txt").write_text("#version")
    (folder / "run.py").write_text("")
    return folder


def split(folder):
    """Turn the single pickle into two shards with an index."""
    state = torch.load(folder / "pytorch_model.bin")
    (folder / "pytorch_model.bin").unlink()
    parts = {"a.bin": list(state)[::2], "b.bin": list(state)[1::2]}
    for shard, names in parts.items():
        torch.save({name: state[name].clone() for name in names}, folder / shard)
    placed = {name: shard for shard, names in parts.items() for name in names}
    text = json.dumps({"weight_map": placed})
    (folder / "pytorch_model.bin.index.json").write_text(text)


@pytest.mark.parametrize("sharded", [False, True])
def test_converted_weights_are_the_same_weights(pickled, tmp_path, sharded):
    if sharded:
        split(pickled)
    goal = convert(pickled, tmp_path / "new" / "goal")
    found, expected = load_file(goal / "model.safetensors"), tiny.reference("opt")[0].state_dict()
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    names = {"config.json", "generation_config.json", "merges.txt", "model.safetensors"}
    assert {file.name for file in goal.iterdir()} == names | {"vocab.json"}
    assert [file.name for file in goal.parent.iterdir()] == ["goal"]
    shutil.copy(tmp_path / "original.safetensors", pickled / "model.safetensors")
    config, _ = read_config(goal)
    jax.tree.map(
        np.testing.assert_array_equal, load_params(goal, config), load_params(pickled, config)
    )


def test_transformers_reads_what_we_wrote(pickled, tmp_path):
    goal = convert(pickled, tmp_path / "goal")
    model = transformers.AutoModelForCausalLM.from_pretrained(goal, attn_implementation="eager")
    np.testing.assert_array_equal(tiny.logits(model.eval()), tiny.reference("opt")[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("zipped", [True, False])
def test_types_views_and_old_formats_survive(tmp_path, dtype, zipped):
    (tmp_path / "source").mkdir()
    base = torch.arange(24).reshape(4, 6).to(dtype)
    state = {"view": base.T, "part": base[1:3, ::2], "scalar": base[1, 1], "none": base[:0]}
    file = tmp_path / "source" / "head.pt"
    torch.save({"state_dict": state}, file, _use_new_zipfile_serialization=zipped)
    found = load_file(convert(tmp_path / "source", tmp_path / "goal") / "model.safetensors")
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert all(found[name].dtype == dtype for name in state)


class Payload:
    """What a hostile pickle would run."""

    def __reduce__(self):
        return (pytest.fail, ("the pickle ran code",))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda file: torch.save({"x": Payload()}, file), "it would run _pytest.*safetensors"),
        (lambda file: file.write_bytes(file.read_bytes()[:1000]), ""),
        (lambda file: file.write_bytes(b""), ""),
    ],
    ids=["code", "truncated", "empty"],
)
def test_a_damaged_or_hostile_file_leaves_nothing_behind(pickled, tmp_path, spoil, reason):
    spoil(pickled / "pytorch_model.bin")
    message = (
        rf"pytorch_model\.bin is damaged, or holds more than tensors: (?!.*weights_only){reason}"
    )
    with pytest.raises(ValueError, match=message):
        convert(pickled, tmp_path / "new" / "goal")
    assert not list((tmp_path / "new").iterdir())


def test_what_is_not_a_table_of_tensors_is_refused(pickled, tmp_path):
    for content in ([1, 2], {}, {"x": 3}, {3: torch.ones(1)}):
        torch.save(content, pickled / "pytorch_model.bin")
        with pytest.raises(ValueError, match="does not hold tensors by name"):
            convert(pickled, tmp_path / "goal")


def test_an_existing_destination_is_left_alone(pickled, tmp_path):
    (tmp_path / "goal").mkdir()
    with pytest.raises(ValueError, match="exists already"):
        convert(pickled, tmp_path / "goal")
    assert not list((tmp_path / "goal").iterdir())


def test_sources_without_one_set_of_pickles_are_refused(pickled, tmp_path):
    (pickled / "pytorch_model.bin").rename(pickled / "one.bin")
    shutil.copy(pickled / "one.bin", pickled / "two.pt")
    (pickled / "training_args.bin").write_text("")
    with pytest.raises(ValueError, match=r"one weight file, got one\.bin, two\.pt"):
        convert(pickled, tmp_path / "goal")
    (pickled / "model.safetensors").write_text("")
    with pytest.raises(ValueError, match="holds safetensors already"):
        convert(pickled, tmp_path / "goal")
    with pytest.raises(ValueError, match="is not a folder"):
        convert(tmp_path / "nowhere", tmp_path / "goal")


def test_shards_must_exist_and_not_overlap(pickled, tmp_path):
    split(pickled)
    torch.save(torch.load(pickled / "a.bin"), pickled / "b.bin")
    with pytest.raises(ValueError, match="which another shard holds"):
        convert(pickled, tmp_path / "goal")
    (pickled / "b.bin").unlink()
    with pytest.raises(ValueError, match=r"lacks shards its index names: b\.bin"):
        convert(pickled, tmp_path / "goal")


MEDUSA_JSON = {  # all that the authors' config.json tells
    "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
    "medusa_num_heads": 3,
    "medusa_num_layers": 1,
}


def test_medusa_as_its_authors_stored_it_becomes_what_vllm_loads(tmp_path):
    checkpoints = build(tmp_path / "cycle")
    expected = load_file(checkpoints["medusa_original"] / "model.safetensors")
    source = tmp_path / "source"
    source.mkdir()
    torch.save(expected, source / "medusa_lm_head.pt")
    (source / "config.json").write_text(json.dumps(MEDUSA_JSON))
    goal = convert(source, tmp_path / "goal")
    found = load_file(goal / "model.safetensors")
    names = {"0.0.linear.weight": "blocks.0.layers.0.weight", "2.1.weight": "lm_heads.2.weight"}
    names["1.0.linear.bias"] = "blocks.1.layers.0.bias"
    assert len(found) == len(expected)
    assert all(torch.equal(found[new], expected[old]) for old, new in names.items())
    facts = json.loads((goal / "config.json").read_text())
    theirs = json.loads((checkpoints["medusa_original"] / "config.json").read_text())
    del theirs["dtype"]
    assert facts == MEDUSA_JSON | theirs
    target, _ = read_config(checkpoints["target"])
    weights = load_params(checkpoints["target"], target)
    heads = [
        load_head(folder, "medusa", read_head_config(folder, "medusa", target), weights)
        for folder in (goal, checkpoints["medusa_original"])
    ]
    jax.tree.map(np.testing.assert_array_equal, *heads)


def test_eagle_as_its_authors_stored_it_becomes_what_vllm_loads(tmp_path):
    checkpoints = build(tmp_path / "cycle")
    target, _ = read_config(checkpoints["target"])
    weights = load_params(checkpoints["target"], target)
    for name, method in (("eagle", "eagle"), ("eagle3_reduced", "eagle3")):
        source, goal = tmp_path / f"{name}_source", tmp_path / f"{name}_goal"
        shutil.copytree(checkpoints[name], source)
        (source / "model.safetensors").unlink()
        state = load_file(checkpoints[name] / "model.safetensors")
        bias = {"fc.bias": torch.zeros(64)} if name == "eagle" else {}
        torch.save(state | bias, source / "pytorch_model.bin")
        convert(source, goal)
        heads = [
            load_head(folder, method, read_head_config(folder, method, target), weights)
            for folder in (goal, checkpoints[name])
        ]
        jax.tree.map(np.testing.assert_array_equal, *heads)
    torch.save(state | {"fc.bias": torch.ones(64)}, source / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"fc\.bias is not zero"):
        convert(source, tmp_path / "other")


def test_without_torch_the_extra_is_named(pickled, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"specjax\[bridge\]"):
        convert(pickled, tmp_path / "goal")
