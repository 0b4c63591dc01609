"""The accelerator's benchmark counts what a step reads, and measures on any platform."""

import json

import jax
import pytest
from typer.testing import CliRunner

from specjax.bench.accelerator import bench_accelerator, step_bytes
from specjax.bench.plan import Setting
from specjax.cli import app as cli
from specjax.models.build import init_params
from specjax.testing.harness import TINY

SMALL = Setting(config=TINY, capacity=64, context=8, window=32, batches=(1, 2), nodes=(1, 2))


def test_a_small_shape_is_measured(tmp_path):
    file = tmp_path / "rows.json"
    bench_accelerator(file, setting=SMALL, prompts=(8,), num_bytes=2**16, reps=1)
    rows = {row["name"]: row for row in json.loads(file.read_text())}
    assert rows["read bandwidth"]["value"] > 0
    for batch_size in SMALL.batches:
        for nodes in SMALL.nodes:
            name = f"step over {nodes}, batch {batch_size}"
            milliseconds, used = rows[name]["value"], rows[f"{name}: bandwidth used"]
            needed = step_bytes(SMALL, init_params(TINY, jax.random.key(0)), batch_size)
            assert used["value"] == pytest.approx(needed / milliseconds / 1e6)
    assert rows["reading 8 tokens"]["value"] > 0
    assert rows["linear, 1 rows"]["against"] == "x @ w"


def test_a_step_reads_tied_weights_once_and_the_keys_and_values_of_its_rows():
    weights = init_params(TINY, jax.random.key(0))
    stored = sum(leaf.nbytes for leaf in jax.tree.leaves(weights))
    cache = 3 * SMALL.context * 2 * TINY.num_layers * TINY.num_kv_heads * TINY.head_dim * 4
    assert step_bytes(SMALL, weights, 3) == stored + cache


def test_a_cpu_is_refused():
    result = CliRunner().invoke(cli.app, ["bench", "accelerator"])
    assert result.exit_code == 2
    assert "needs a GPU or TPU" in result.stderr
