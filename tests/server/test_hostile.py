"""Hostile requests: nothing fails or hangs, and another client notices nothing."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server import hostile

NUM_CASES, NUM_EXAMPLES = 300, 20  # `make hostile` sends 5,000


def test_hostile_requests_change_nothing_for_another_client(url, call, deployment):
    document = call("GET", "/openapi.json").json()
    found = hostile.cases(document, NUM_CASES)
    outcome = asyncio.run(hostile.attack(url, found, Path("/proc/self")))
    print(outcome.statuses, outcome.num_same)
    assert outcome.statuses.total() == NUM_CASES
    assert outcome.faults == []
    assert outcome.statuses["400"] > NUM_CASES / 10
    assert outcome.num_same > 0
    assert deployment.service.alive


def test_every_status_of_the_document_is_documented(call):
    """OpenAPI names, for every address that takes a body, the errors that it answers with."""
    for path, methods in call("GET", "/openapi.json").json()["paths"].items():
        for method, one in methods.items():
            expected = {"200", "400", "401", "403", "500", "503"}
            if method == "post" and "requestBody" in one:
                expected |= {"408", "413", "415", "504"}
            assert expected <= set(one["responses"]), (method, path)


@pytest.mark.skipif(shutil.which("schemathesis") is None, reason="schemathesis is not installed")
def test_schemathesis_finds_nothing(url):
    """Its checks of every address: no server error, documented statuses and content types."""
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    command = ["schemathesis", "run", f"{url}/openapi.json", "--checks", checks]
    command += ["--max-examples", str(NUM_EXAMPLES), "--phases", "examples,fuzzing"]
    done = subprocess.run([*command, "--seed", "7"], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-5000:]
