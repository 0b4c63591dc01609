"""A model folder without a tokenizer: another folder's serves, a draft model has its target's."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specjax import LLM, SamplingParams
from specjax.cli.app import app

FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
PARAMS = SamplingParams(temperature=0.0, max_tokens=8)
PROMPT = "def f(x):"


@pytest.fixture(scope="module")
def bare(pair, tmp_path_factory):
    """Copy the pair without its tokenizers."""
    folder = tmp_path_factory.mktemp("bare")
    for name, source in (("target", pair.target), ("draft", pair.draft)):
        shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns(*FILES))
    return folder


def draft(folder: Path | str, **options):
    return {"model": str(folder), "num_speculative_tokens": 3, **options}


def test_another_folders_tokenizer_serves(pair, bare):
    with pytest.raises(ValueError, match=rf"no tokenizer in {bare}/target.*tokenizer= "):
        LLM(bare / "target")
    plain = LLM(pair.target).generate(PROMPT, PARAMS)[0]
    found = LLM(bare / "target", tokenizer=pair.target).generate(PROMPT, PARAMS)[0]
    assert found.prompt_token_ids == plain.prompt_token_ids
    assert found.outputs[0].text == plain.outputs[0].text


def test_what_ends_a_text_is_the_models_own(pair, bare, tmp_path):
    """Not the config's of the folder that only lends its tokenizer."""
    lender = shutil.copytree(pair.target, tmp_path / "lender")
    config = json.loads((lender / "config.json").read_text())
    (lender / "config.json").write_text(json.dumps({**config, "eos_token_id": 7}))
    (lender / "generation_config.json").unlink(missing_ok=True)
    assert 7 not in LLM(bare / "target", tokenizer=lender).core.input_processor.eos_ids
    assert 7 in LLM(lender).core.input_processor.eos_ids


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_a_token_that_ends_a_text_must_be_in_the_vocabulary(pair, tmp_path, file):
    folder = shutil.copytree(pair.target, tmp_path / "model")
    known = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps({**known, "eos_token_id": [99999999999]}))
    with pytest.raises(ValueError, match=r"eos_token_id 99999999999 in .* is outside"):
        LLM(folder)


def test_a_tokenizer_with_too_many_tokens_is_refused(bare):
    with pytest.raises(ValueError, match="2048 tokens, the model only 260"):
        LLM(bare / "target", tokenizer="bundled")


@pytest.mark.parametrize("lender", [None, "pair"])
def test_a_draft_model_without_a_tokenizer_has_the_targets(pair, bare, lender):
    model, tokenizer = (pair.target, None) if lender is None else (bare / "target", pair.target)
    llm = LLM(model, tokenizer=tokenizer, speculative_config=draft(bare / "draft"))
    text = llm.generate(PROMPT, PARAMS)[0].outputs[0].text
    assert text == LLM(pair.target).generate(PROMPT, PARAMS)[0].outputs[0].text


def test_a_draft_model_of_another_size_without_a_tokenizer_is_refused(bare):
    with pytest.raises(ValueError, match=r"no tokenizer in .*draft.*2048 tokens, .* 260\. Add"):
        LLM("bundled", speculative_config=draft(bare / "draft"))
    other = draft(bare / "draft", use_heterogeneous_vocab=True)
    with pytest.raises(ValueError, match="use_heterogeneous_vocab needs the draft model's own"):
        LLM("bundled", speculative_config=other)


def test_the_command_line_takes_one(pair, bare):
    given = ("generate", "--model", str(bare / "target"), "--prompt", PROMPT, "--max-tokens", "4")
    refused = CliRunner().invoke(app, given)
    assert refused.exit_code == 2
    assert "--tokenizer" in refused.stderr
    config = ("--speculative-config", json.dumps(draft(bare / "draft")))
    found = CliRunner().invoke(app, [*given, "--tokenizer", pair.target, *config])
    assert found.exit_code == 0, found.output


def test_the_server_takes_one(pair, bare, monkeypatch):
    served = {}
    monkeypatch.setattr(
        "specjax.server.run.run_server", lambda model, options, **_: served.update(options)
    )
    given = ("serve", str(bare / "target"), "--tokenizer", pair.target, "--batch-invariant")
    assert CliRunner().invoke(app, given).exit_code == 0
    assert LLM(bare / "target", **served).core.tokenizer.vocab_size <= 260
    assert served["batch_invariant"]


def test_the_drafts_headers_are_read_before_the_targets_weights(pair, tmp_path, monkeypatch):
    folder = shutil.copytree(pair.draft, tmp_path / "draft")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    read = "specjax.weights.load.read_tensor"
    monkeypatch.setattr(read, lambda *_: pytest.fail("weights were read"))
    with pytest.raises(ValueError, match="truncated"):
        LLM(pair.target, speculative_config=draft(folder))
