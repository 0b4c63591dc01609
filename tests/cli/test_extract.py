"""``specjax extract``: whole files, done once, of one model."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from specjax.cli import app as cli
from specjax.engine import connector
from specjax.weights.hidden_states import MANIFEST, read_hidden_states, read_manifest

TEXTS = ["def f(x):", "import os\n", "class A:\n    pass", "def f(x):"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    return path


def invoke(pair, prompts, out, *args):
    options = ("--prompt-file", str(prompts), "--out", str(out), "--layers", "0,2")
    return CliRunner().invoke(cli.app, ["extract", "--model", pair.target, *options, *args])


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}


def test_a_killed_extraction_goes_on_and_ends_as_one_that_was_not(
    pair, prompts, tmp_path, monkeypatch
):
    out, whole, calls = tmp_path / "out", tmp_path / "whole", []
    save = connector.write_hidden_states

    def dies(path, tokens, states):
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        save(path, tokens, states)

    with monkeypatch.context() as patch:
        patch.setattr(connector, "write_hidden_states", dies)
        assert invoke(pair, prompts, out).exit_code == 130
    first = times(out)
    assert len(first) == 1
    result = invoke(pair, prompts, out)
    assert result.exit_code == 0, result.output
    assert "1 of 3 texts are in" in result.stderr
    assert "3 texts, " in result.stdout
    assert first.items() <= times(out).items()  # what was done was left alone
    assert invoke(pair, prompts, whole).exit_code == 0
    assert read_manifest(out) == read_manifest(whole)
    names = read_manifest(out).files
    assert {path.name for path in out.iterdir()} == {*names, MANIFEST}
    for name in names:
        ours, theirs = read_hidden_states(out / name), read_hidden_states(whole / name)
        np.testing.assert_array_equal(ours.token_ids, theirs.token_ids)
        np.testing.assert_array_equal(ours.hidden_states, theirs.hidden_states)
        assert ours.hidden_states.shape == (len(ours.token_ids), 2, 32)


def test_what_is_all_there_costs_no_model_and_another_model_is_refused(pair, prompts, tmp_path):
    out = tmp_path / "out"
    assert invoke(pair, prompts, out).exit_code == 0
    before = times(out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specjax.engine.llm.LLM", None)
        result = invoke(pair, prompts, out)
    assert (result.exit_code, times(out)) == (0, before)
    assert "3 of 3 texts" in result.stderr
    for args, said in (
        (("--layers", "1"), "was made with layers=(0, 2), not (1,)"),
        (("--dtype", "bfloat16"), "was made with dtype='float32', not 'bfloat16'"),
        (("--model", pair.draft, "--layers", "0,1"), "was made with weights="),
    ):
        refused(invoke(pair, prompts, out, *args), said)
    assert times(out) == before
    damaged = sorted(out.glob("*.safetensors"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-4])
    refused(invoke(pair, prompts, out), f"{damaged} is damaged: remove it")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--layers", "0,3"), "has 3, the target has 2 layers"),
        (("--layers", "two"), "--layers must be numbers such as 2,18,34, got 'two'"),
        (("--layers", "1,1"), "must be different layers"),
        (("--max-model-len", "4"), "need 1 to 3"),
        (("--prompt-file", "/nowhere/prompts.jsonl"), "No such file"),
    ],
)
def test_what_the_user_got_wrong_is_one_line_and_nothing_is_written(
    args, said, pair, prompts, tmp_path
):
    refused(invoke(pair, prompts, tmp_path / "out", *args), said)
    assert not (tmp_path / "out").exists()


def refused(result, said):
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_two_shares_are_the_whole_and_their_manifest_is_of_all(pair, prompts, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert invoke(pair, prompts, whole).exit_code == 0
    for share, count in (("1/2", 1), ("0/2", 2)):
        result = invoke(pair, prompts, out, "--shard", share)
        assert result.exit_code == 0, result.output
        assert f"{out}: {count} texts" in result.stdout
        assert read_manifest(out) == read_manifest(whole)
    assert times(out).keys() == times(whole).keys()
    refused(invoke(pair, prompts, out, "--shard", "2/2"), "--shard must be I/N")
