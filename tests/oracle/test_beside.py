"""specjax installs into vLLM's environment, and replaces nothing there."""

import json
import subprocess

import pytest

from specjax.oracle.ask import ROOT
from specjax.oracle.environment import OracleMissing, interpreter

LIST = """
import importlib.metadata, json
print(json.dumps([one.name for one in importlib.metadata.distributions()]))
"""


def canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


@pytest.mark.oracle
def test_pip_would_add_jax_and_change_nothing():
    try:
        own = str(interpreter())
    except OracleMissing as missing:
        pytest.skip(str(missing))
    asked = [own, "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", str(ROOT)]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=300)
    if answer.returncode:
        pytest.skip(f"pip reaches no index: {answer.stderr[-300:]}")
    listed = subprocess.run([own, "-c", LIST], capture_output=True, text=True, check=True)
    there = {canonical(name) for name in json.loads(listed.stdout)}
    report = json.loads(answer.stdout[answer.stdout.index("{") :])
    added = {canonical(one["metadata"]["name"]) for one in report["install"]}
    assert {"specjax", "jax", "jaxlib", "flax"} <= added
    assert not added & there, "pip would replace what vLLM brought"
