"""``specjax serve --train-drafter``: the head learns while it serves, and no text changes."""

import json
import signal

import pytest

from specjax.server.run import run_server
from tests.server.processes import PATIENCE, process

EAGLE3 = {"method": "eagle3", "model": "bundled:eagle3", "num_speculative_tokens": 3}


def test_a_server_trains_its_head_on_what_it_answers_and_every_text_stays(tmp_path):
    words = ["serve", "bundled", "--max-model-len", "256", "--max-num-seqs", "2"]
    words += ["--speculative-config", json.dumps(EAGLE3)]
    words += ["--train-drafter", str(tmp_path / "learned"), "--train-drafter-every", "8"]
    with process("specjax", *words) as (server, client):

        def ask(number):
            body = {"prompt": f"def add_{number}(a, b):\n", "max_tokens": 40, "temperature": 0}
            reply = client.post("/v1/completions", json={**body, "ignore_eos": True})
            assert reply.status_code == 200
            return reply.json()["choices"][0]["text"]

        before = [ask(number) for number in range(8)]
        during = 0
        while not (tmp_path / "learned" / "head").exists():
            assert ask(during % 8) == before[during % 8]
            during += 1
        assert [ask(number) for number in range(8)] == before
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
        log = server.stderr.read()
    assert "trained the head on" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("config", "got"),
    [
        (None, "got none"),
        ({"method": "ngram", "num_speculative_tokens": 3}, "got ngram"),
        ({**EAGLE3, "fallback": EAGLE3}, "got eagle3, then eagle3"),
    ],
)
def test_a_server_without_a_head_says_so_before_anything_is_loaded(
    config, got, tmp_path, monkeypatch
):
    monkeypatch.setattr("specjax.server.run.LLM", None)
    with pytest.raises(ValueError, match=got):
        run_server("bundled", {"speculative_config": config}, train_drafter=tmp_path / "learned")
    assert not list(tmp_path.iterdir())
