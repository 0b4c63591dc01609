"""``specjax doctor --model`` says what ``LLM`` would, and reads no weight for it."""

import json
import re
import shutil

import jax
import pytest
from typer.testing import CliRunner

from specjax.cli import app
from specjax.weights.footprint import readable
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from tests.weights import test_quantized


def doctor(model, *options):
    result = CliRunner().invoke(app.app, ["doctor", "--model", str(model), *options])
    return result.exit_code, result.output


@pytest.fixture(autouse=True)
def nothing_is_read(monkeypatch):
    def forbidden(*_):
        pytest.fail("weights were read")

    with monkeypatch.context() as patch:
        patch.setattr("specjax.weights.safetensors_file.read_rows", forbidden)
        patch.setattr("specjax.weights.reader.read_rows", forbidden)
        patch.setattr("specjax.weights.packed.read_rows", forbidden)
        yield patch


def test_sizes_are_those_of_what_is_loaded(pair, nothing_is_read):
    code, said = doctor(pair.target, "--max-model-len", "256")
    assert code == 0, said
    assert "loads      yes" in said
    assert "2 x (attention, MLP)" in said
    config, _ = read_config(pair.target)
    assert "256 B per token" in said  # 2 layers, keys and values, 2 heads of 8 float32
    assert "65.5 kB per row of 256 tokens" in said
    nothing_is_read.undo()
    weights = load_params(pair.target, config, keep_dtype=True)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(weights))
    assert f"{readable(size)} as bfloat16" in said


def test_drafters_that_fit_are_named_and_others_say_why(pair):
    _, said = doctor(pair.target, "--draft", pair.draft)
    assert "ngram, suffix" in said
    assert f"draft_model, {pair.draft}: fits" in said
    assert f"mtp, {pair.target}: no, " in said
    assert "eagle3, bundled:eagle3: no, " in said
    _, said = doctor("bundled")
    for name in ("draft_model, bundled:draft", "eagle3, bundled:eagle3", "medusa, bundled:medusa"):
        assert f"{name}: fits" in said


def test_a_quantized_checkpoint_says_how_and_what_it_takes(pair, tmp_path):
    code, said = doctor(test_quantized.quantize(pair.target, tmp_path, "gptq"))
    assert code == 0, said
    assert "GPTQ 4 bits, groups of 16" in said
    assert "dequantized" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantization_config": {"quant_method": "hqq"}}, "'hqq' .*use the unquantized"),
        ({"num_hidden_layers": 3}, "do not match its config.json"),
        ({"architectures": ["NovelForCausalLM"]}, "NovelForCausalLM"),
    ],
    ids=str,
)
def test_what_does_not_load_is_said_in_one_sentence(change, message, pair, tmp_path):
    folder = shutil.copytree(pair.target, tmp_path, dirs_exist_ok=True)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | change))
    code, said = doctor(folder)
    assert code == 1
    assert re.search(f"loads      NO: .*{message}", said)


def test_memory_that_is_not_there_is_a_no(pair, monkeypatch):
    monkeypatch.setattr("specjax.cli.doctor_model.available_memory", lambda: 1000)
    code, said = doctor(pair.target)
    assert code == 1
    assert "loads      NO: it needs more memory than is available" in said
