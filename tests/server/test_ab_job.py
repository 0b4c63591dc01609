"""The vllm-ascend job that ``specjax ab plan`` writes, run dry against our own server."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specjax.ab.ascend import plan_ascend_suffix
from specjax.ab.records import read_log
from specjax.server.app import create_app
from specjax.theory.published import SUFFIX_BENCHMARK
from tests.server.running import running


@pytest.fixture
def url(deployment):
    """Serve under one name, as the guide does."""
    app = create_app(dataclasses.replace(deployment, names=("qwen3",)))
    with running(app, lifespan="off") as address:
        yield address


def test_the_ascend_job_runs_dry_against_our_own_server(url, tmp_path):
    """All six datasets at all their concurrencies; given again, it asks nothing anew."""
    loads: dict[str, list[int]] = {}
    for row in SUFFIX_BENCHMARK:
        loads.setdefault(row.dataset, []).append(row.concurrency)
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in loads}
    for name, path in paths.items():
        Path(path).write_text(json.dumps({"turns": [f"{name}?"]}) + "\n")
    plan_ascend_suffix(tmp_path, "/data/Qwen3-32B", paths)
    own = Path(sys.executable).parent  # specjax and the job's python
    given = {"PLAIN": url, "SUFFIX": url, "LIMIT": "1", "MAX_TOKENS": "2"}
    run = {"cwd": tmp_path, "env": {**os.environ, **given, "PATH": f"{own}:{os.environ['PATH']}"}}
    done = subprocess.run(["bash", "job.sh"], capture_output=True, text=True, **run)
    assert done.returncode == 0, done.stderr
    logs = {name: tmp_path / "results" / name / "log.jsonl" for name in loads}
    for name, asked in loads.items():
        units = read_log(logs[name]).units
        assert {(one.arm, one.concurrency) for one in units} == {
            (arm, load) for arm in ("plain", "suffix") for load in asked
        }
        assert all(record.error is None for one in units for record in one.requests)
    first, kept = logs["Humaneval"], logs["Humaneval"].read_bytes()
    lines = (tmp_path / "job.sh").read_text().split("specjax ab run")
    (tmp_path / "first.sh").write_text("specjax ab run".join(lines[:2]))
    done = subprocess.run(["bash", "first.sh"], capture_output=True, text=True, **run)
    assert done.returncode == 0, done.stderr
    assert first.read_bytes() == kept
