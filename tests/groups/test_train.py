"""Two processes train as one: the losses of one process; killed, one process goes on."""

import os
import signal
import subprocess
import sys
import time

import jax
import pytest

from specjax.models.build import init_params
from specjax.models.config import ModelConfig
from specjax.train.log import read_losses
from specjax.train.tokenizer import END_OF_TEXT, save_tokenizer, train_tokenizer
from specjax.weights.save import save_model
from tests.groups.test_generate import ALONE

SIZES = (
    *("--layers", 1, "--hidden", 32, "--intermediate", 48, "--heads", 2, "--kv-heads", 1),
    *("--head-dim", 16, "--vocab-size", 300, "--context", 32, "--batch", 4, "--eval-every", 4),
)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """Write a target that is deep enough for EAGLE-3's three taps."""
    folder = tmp_path_factory.mktemp("target")
    words = train_tokenizer(["def f(x): return x + 1\n" * 50], 260)
    config = ModelConfig(
        vocab_size=260, hidden_size=32, intermediate_size=48, num_layers=5, num_heads=2,
        num_kv_heads=1, head_dim=16, max_position_embeddings=128, qk_norm=True,
        tie_word_embeddings=True,
    )  # fmt: skip
    weights = init_params(config, jax.random.key(0))
    save_model(folder, config, weights, end=words.token_to_id(END_OF_TEXT))
    save_tokenizer(words, folder, 128)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    for i in range(60):
        text = f"def f{i}(x, y):\n    for i in range({i}): x = x + y * {i}\n    return x - {i}\n"
        (folder / f"m{i}.py").write_text(text)
    return folder


def command(kind, *words, nproc):
    start = (
        ("specjax", "train") if nproc == 1 else ("specjax.launch", "--nproc", nproc, "--", "train")
    )
    return [sys.executable, "-m", *map(str, (*start, kind, *words))]


def run(kind, *words, nproc):
    done = subprocess.run(
        command(kind, *words, nproc=nproc),
        capture_output=True, text=True, timeout=170, env={**os.environ, **ALONE},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def losses(out):
    return [(r["step"], r["loss"], r.get("held_out_loss")) for r in read_losses(out / "loss.jsonl")]


def test_a_model_learns_the_same_in_two_processes_and_goes_on_in_one(source, tmp_path):
    words = (*SIZES, "--steps", 8, "--source", source)
    run("lm", "--out", tmp_path / "one", *words, nproc=1)
    alone = losses(tmp_path / "one")
    assert len(alone) == 2
    process = subprocess.Popen(
        command("lm", "--out", tmp_path / "two", *words, nproc=2),
        env={**os.environ, **ALONE}, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not (tmp_path / "two" / "checkpoints" / "4").is_dir() and time.monotonic() < until:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    run("lm", "--out", tmp_path / "two", *words, nproc=1)
    for found, wanted in zip(losses(tmp_path / "two"), alone, strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)
    assert (tmp_path / "two" / "model" / "model.safetensors").is_file()


def test_a_head_learns_the_same_in_two_processes(target, source, tmp_path):
    data = ("--target", target, "--source", source, "--batch", 2, "--context", 16, "--own", 4)
    data += ("--batches", 2, "--held-out", 1)
    run("shards", "--out", tmp_path / "shards", *data, nproc=1)
    words = ("--shards", tmp_path / "shards", "--steps", 2, "--eval-every", 1)
    words += ("--unroll", 2, "--draft-vocab", 100)
    for nproc in (1, 2):
        run("eagle3", "--out", tmp_path / str(nproc), *words, nproc=nproc)
    alone, both = losses(tmp_path / "1"), losses(tmp_path / "2")
    for found, wanted in zip(both, alone, strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)
    assert len(alone) == 2


def test_a_batch_that_cannot_be_shared_is_refused(source, tmp_path):
    words = ("--out", tmp_path, *SIZES, "--steps", 1, "--source", source, "--batch", 3)
    done = subprocess.run(
        command("lm", *words, nproc=2),
        capture_output=True, text=True, timeout=100, env={**os.environ, **ALONE},
    )  # fmt: skip
    assert "a batch of 3 sequences cannot be shared by 2 devices: choose --batch 4" in done.stderr
    assert done.returncode != 0
