"""Several processes that share one model give the texts of one process, with every kind of draft;
the first one writes; processes that differ, or one that is killed, end all with one line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from specjax.launch.__main__ import free_ports
from specjax.weights.hidden_states import read_hidden_states
from tests.groups import driver

GROUPS = {  # name -> number of processes, cases
    "few": (2, ("walk", "masked")),
    "from text": (2, ("plain", "ngram", "suffix")),
    "rules": (2, ("rejection", "block", "rejection of trees")),
    "trees": (2, ("tree", "grown")),
    "two drafters": (2, ("fallback", "drafted for")),
    "features": (2, ("eagle", "eagle3", "mtp")),
    "other heads": (2, ("medusa", "mlp_speculator")),
    "all at once": (2, ("pard", "peagle", "dflash", "dspark")),
    "four": (4, ("walk",)),
}
ALONE = {"XLA_FLAGS": "", "JAX_NUM_CPU_DEVICES": "1", "JAX_PLATFORMS": "cpu"}


@pytest.fixture
def start():
    """Start processes of Python modules; those that are left are killed at the end."""
    started = []

    def start(*words, code=None):
        module, *rest = map(str, words)
        what = ("-m", module) if code is None else ("-c", code)
        process = subprocess.Popen(
            [sys.executable, *what, *rest],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **ALONE},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def listening(port):
    """Return the addresses at which this host listens at a port, as Linux tells."""
    found = []
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(file).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:
                loopback = int(address, 16) == int.from_bytes(b"\x7f\0\0\1", sys.byteorder)
                found.append("127.0.0.1" if loopback else address)
    return found


def generate(pair, *words, rank, port, nnodes=2, devices=2):
    place = ("--nnodes", nnodes, "--node-rank", rank, "--master-addr", "127.0.0.1")
    what = ("generate", "--model", pair.target, "--tensor-parallel-size", devices)
    return ("specjax", *what, *place, "--master-port", port, *words)


@pytest.fixture(scope="module")
def heads(pair, tmp_path_factory):
    """Write an untrained head of every kind, and a PARD model."""
    folder = tmp_path_factory.mktemp("heads")
    driver.write_heads(pair.target, pair.draft, folder)
    return str(folder)


def test_no_case_is_left_out():
    named = {name for _, names in GROUPS.values() for name in names}
    assert named == {name for name, *_ in driver.cases("draft", "heads")}


@pytest.mark.parametrize(("nnodes", "names"), GROUPS.values(), ids=GROUPS)
def test_the_texts_are_those_of_one_process(pair, heads, start, tmp_path, nnodes, names):
    port, one = free_ports(), driver.texts(pair.target, pair.draft, heads, 1, names)
    common = (pair.target, pair.draft, heads, tmp_path, *names)
    processes = [
        start("tests.groups.driver", nnodes, rank, port, *common) for rank in range(nnodes)
    ]
    for rank, process in enumerate(processes):
        log = process.communicate(timeout=500)[1]
        assert process.returncode == 0, log
        assert json.loads((tmp_path / f"ids-{rank}.json").read_text()) == one
    (file,) = tmp_path.glob("*.safetensors")  # of one process, though all ran
    alone = Path(driver.extract(pair.target, 1, str(tmp_path / "alone")))
    states = [read_hidden_states(path).hidden_states for path in (file, alone)]
    np.testing.assert_allclose(*states, atol=1e-4)


def test_the_first_prints_and_a_job_of_two_processes_is_that_of_one(pair, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps(text) + "\n" for text in driver.PROMPTS))
    common = ("--prompt-file", prompts, "--max-tokens", 4, "--model", pair.target)
    launch = ("specjax.launch", "--nproc", 2, "--", "generate", "--tensor-parallel-size", 2)

    def run(*words):
        command = [sys.executable, "-m", *map(str, words)]
        env = {**os.environ, **ALONE}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    out = ("--out", tmp_path / "one", "--shard-size", 2)
    run("specjax", "generate", *common, *out)
    assert run("specjax", "generate", *common, "--json") == run(*launch, *common, "--json")
    out = ("--out", tmp_path / "two", "--shard-size", 2)
    assert "2 of 2 shards, complete" in run(*launch, *common, *out)
    for name in ("part-00000.jsonl", "part-00001.jsonl"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((("--prompt", "a"), ("--prompt", "b")), "processes [1] have another requests than"),
        ((("--prompt", "a"), ("--prompt", "a", "--max-num-seqs", 3)), "another set of options"),
    ],
)
def test_processes_that_differ_are_refused(pair, start, words, says):
    port = free_ports()
    both = [start(*generate(pair, *own, rank=i, port=port)) for i, own in enumerate(words)]
    for process in both:
        assert says in process.communicate(timeout=120)[1]
        assert process.returncode in (2, 3)


def test_another_version_is_refused(pair, start):
    port, words = free_ports(), ("--prompt", "a")
    both = [generate(pair, *words, rank=i, port=port) for i in range(2)]
    newer = "from specjax.engine import core; core.__version__ = '9'; from specjax.cli import app; "
    both = [start(*both[0]), start(*both[1], code=newer + "app.main()")]
    for process in both:
        log = process.communicate(timeout=120)[1]
        assert "processes [1] have another version of specjax than process 0" in log
        assert process.returncode in (2, 3)


def test_a_rank_is_needed_where_no_scheduler_tells_it(pair, start):
    log = start("specjax", "generate", "--prompt", "a", "--nnodes", 2).communicate(timeout=60)[1]
    assert "which sees neither Slurm, Open MPI nor a TPU pod" in log


def test_devices_without_a_part_of_the_model_are_refused(pair, start):
    port, words = free_ports(), ("--prompt", "a")
    both = [start(*generate(pair, *words, rank=i, port=port, devices=1)) for i in range(2)]
    for process in both:
        assert "use tensor_parallel_size=2, so that each has" in process.communicate(timeout=60)[1]


def test_when_one_is_killed_the_other_ends_at_once_with_one_line(pair, start):
    words = ("--prompt", "a", "--max-tokens", 500, "--ignore-eos", "--max-num-seqs", 1)
    port, words = free_ports(), (*words, "-n", 500, "--temperature", 1)
    first, other = (start(*generate(pair, *words, rank=i, port=port)) for i in range(2))
    for line in first.stderr:  # gloo's, when both have met
        if "connected to 1 peer" in line:
            break
    time.sleep(4)
    other.send_signal(signal.SIGKILL)
    begun = time.monotonic()
    log = first.communicate(timeout=30)[1]
    assert first.returncode == 3
    assert "error: process 1 was lost; all processes end" in log
    assert time.monotonic() - begun < 25
