"""XLA's threads stay on a core each, which changes no result and can be turned off."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specjax.host.threads import VARIABLE, bind_threads

SHOW = """
import os
import jax
from specjax.host.threads import bind_threads
found = bind_threads()
print(sorted(tuple(os.sched_getaffinity(one)) for one in found), len(os.sched_getaffinity(0)))
print(float(jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((64, 64)))))
"""
linux = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc/self/task"
)


def show(**environment):
    command = [sys.executable, "-c", SHOW]
    whole = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", **environment}
    return subprocess.run(command, env=whole, check=True, capture_output=True, text=True).stdout


@linux
def test_each_thread_has_a_core_of_its_own_and_the_process_keeps_all():
    first, second = show().splitlines()
    cores = sorted(os.sched_getaffinity(0))
    assert first == f"{[(core,) for core in cores]} {len(cores)}"
    assert second == str(64.0**3)


@linux
def test_nobind_leaves_them_alone():
    assert show(**{VARIABLE: "nobind"}).startswith("[]")


def test_a_list_of_cores_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setenv(VARIABLE, "0-1")
    with pytest.raises(ValueError, match="taskset -c 0-1"):
        bind_threads()
