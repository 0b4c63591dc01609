"""Stubs with a time table of their own, each in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STUB = Path(__file__).parent / "stub.py"


@pytest.fixture
def stub():
    """Start stubs; return the URL of each."""
    started = []

    def start(**truth) -> str:
        command = [sys.executable, str(STUB), json.dumps(truth)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        start.processes[f"http://127.0.0.1:{int(process.stdout.readline())}"] = process
        return list(start.processes)[-1]

    start.processes = {}
    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
