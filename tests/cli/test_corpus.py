"""``specjax corpus``: from texts to a file, and what is in it."""

import json

from specjax.bundled import BUNDLED
from specjax.engine import corpus_file
from specjax.engine.text.tokenizer import load_tokenizer


def test_texts_and_completions_become_a_corpus(specjax_command, tmp_path):
    out, text, lines = (tmp_path / name for name in ("said.npz", "one.txt", "more.jsonl"))
    text.write_text("def add(a, b):\n    return a + b\n")
    answers = ['"import os"', json.dumps({"text": "import re", "token_ids": [5, 6, 7]})]
    lines.write_text("\n".join(answers))
    done = specjax_command("corpus", "build", text, lines, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    tokenizer = load_tokenizer(BUNDLED["bundled"])
    responses = corpus_file.load(out, tokenizer)
    assert responses[0] == tokenizer.encode(text.read_text())
    assert responses[1:] == [tokenizer.encode("import os"), [5, 6, 7]]
    total = sum(map(len, responses))
    assert f"3 responses, {total} tokens" in done.stdout
    told = specjax_command("corpus", "info", out).stdout
    assert f"3 responses, {total} tokens" in told
    assert "1056 bytes per token at depth 24" in told


def test_what_cannot_be_read_is_one_clear_error(specjax_command, tmp_path):
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('"fine"\n{"prompt": "no answer"}\n')
    for arguments, said in (
        (["build", wrong, "--out", tmp_path / "said.npz"], "line 2 needs"),
        (["info", wrong], "is no corpus"),
        (["info", tmp_path / "none.npz"], "No such file"),
    ):
        done = specjax_command("corpus", *arguments)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "said.npz").exists()
