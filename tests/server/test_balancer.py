"""Two replicas behind a stock balancer with docs/deploy's files: what a dead one costs.

``python -m tests.server.balancer`` does the same with the bundled model and 2,000 requests.
"""

import subprocess
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from specjax.cli.app import app
from specjax.server import instruments
from tests.server.balancer import (
    DEPLOY,
    KINDS,
    Trial,
    configure,
    greedy,
    program,
    run_trial,
)  # fmt: skip

SLOTS, STREAMS = 2, 10


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_what_the_balancer_accepts(kind, tmp_path):
    if not program(kind):
        pytest.skip(f"{kind} is not installed: apt-get install {kind}")
    command = configure(kind, tmp_path, (8001, 8002), 8000)
    check = {"haproxy": ["-c"], "nginx": ["-t"]}[kind]
    done = subprocess.run([*command, *check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower(), done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_replica_costs_the_streams_it_ran_and_a_drained_one_none(kind, pair):
    if not program(kind):
        pytest.skip(f"{kind} is not installed: apt-get install {kind}")
    prompts = [[7, 8, 9 + number] for number in range(STREAMS)]
    # queues that hold all clients: nobody is refused, whoever is down
    queue = ["--max-num-queued-reqs", "64"]
    options = ["--max-model-len", "512", "--max-num-seqs", str(SLOTS), *queue]
    wrong = run_trial(
        Trial(
            kind=kind,
            model=pair.target,
            options=options,
            long=greedy(prompts, 500),
            short=greedy(prompts, 8),
            num_requests=100,
            busy=2 * SLOTS,
        ),
        print,
    )
    assert wrong == []


def documents():
    """Return what is in the Kubernetes file, by kind."""
    found = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {one["kind"]: one for one in found}


def test_kubernetes_starts_a_server_that_the_command_line_knows(tmp_path):
    """A stand-in for specjax prints its words, as the container would; the seed is a pod's own."""
    pod = documents()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    stand_in = tmp_path / "specjax"
    stand_in.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    stand_in.chmod(0o755)
    command, env = (
        [*container["command"], *container["args"]],
        {"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    seeds = set()
    for _ in range(2):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        name, *words = done.stdout.splitlines()
        assert name == "serve"
        given = get_command(app).commands["serve"].make_context("serve", words).params
        seeds.add(given["seed"])
        assert given["host"] == "0.0.0.0"
        (pre_stop,) = container["lifecycle"]["preStop"]["exec"]["command"][1:]
        patience = given["shutdown_timeout"] + int(pre_stop)
        assert pod["terminationGracePeriodSeconds"] > patience
    assert len(seeds) == 2


def test_kubernetes_asks_addresses_that_the_server_has():
    found = documents()
    deployment = found["Deployment"]["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    source = Path(instruments.__file__).read_text()
    (port,) = (one["containerPort"] for one in container["ports"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["port"] == port
        assert f'"{asked["path"]}"' in source
    labels = deployment["template"]["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"] == deployment["selector"]["matchLabels"] == labels
