"""``bench step`` on a tiny shape: its rows, and what it would catch."""

import io
import itertools
import json
from dataclasses import fields

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

from specjax.bench.plan import Setting
from specjax.bench.report import Row, compare, print_rows
from specjax.bench.step import bench_step, cache_rows, count_copies
from specjax.models.build import init_params
from specjax.models.config import ModelConfig

TINY = Setting(
    config=ModelConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        qk_norm=True,
        tie_word_embeddings=True,
    ),
    capacity=64,
    context=20,
    window=32,
    batches=(1, 4),
    nodes=(1, 4),
)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Run the benchmark once; return its rows and what it printed and wrote."""
    file, said = tmp_path_factory.mktemp("bench") / "step.json", io.StringIO()
    rows = bench_step(file, setting=TINY, reps=2, console=Console(file=said, width=200))
    return rows, json.loads(file.read_text()), said.getvalue()


def test_json_rows_carry_name_value_unit_peer_and_ratio(written):
    rows, stored, _ = written
    assert len(stored) == len(rows)
    for row in stored:
        assert set(row) == {field.name for field in fields(Row)}
        assert {"name", "value", "unit", "peer", "ratio"} <= set(row)
        if row["peer"] is not None:
            assert row["ratio"] == pytest.approx(row["value"] / row["peer"])


def test_every_time_is_over_the_one_it_names_and_judged_by_its_goal(written):
    _, stored, said = written
    rows = {row["name"]: row for row in stored}
    for batch, nodes in itertools.product(TINY.batches, TINY.nodes):
        one, first = rows[f"T({nodes}), batch {batch}"], rows[f"T(1), batch {batch}"]
        assert one["value"] > 0
        assert one["peer"] == first["value"]
    across = rows["T(1), batch 4 over batch 1"]
    assert across["value"] == rows["T(1), batch 4"]["value"]
    assert across["peer"] == rows["T(1), batch 1"]["value"]
    goals = {name: row["goal"] for name, row in rows.items()}
    assert goals["T(4), batch 1"] == "<= 1.45"
    assert goals["T(1), batch 4 over batch 1"] == "<= 1.6"
    assert any(name.startswith("peak RSS") and goal == "<= 1" for name, goal in goals.items())
    for name, row in rows.items():
        assert name in said
        if row["goal"] and row["ratio"] is not None:
            assert row["met"] == (row["ratio"] <= float(row["goal"].removeprefix("<= ")))


def test_a_round_writes_its_own_slots_and_copies_no_cache():
    weights = init_params(TINY.config, jax.random.key(0))
    copies, written, scratch, _ = cache_rows(TINY, weights, reps=1)
    config = TINY.config
    slots = 4 * 2 * config.num_layers  # nodes, keys and values, layers
    assert copies.value == 0
    assert written.value == written.peer == slots * config.num_kv_heads * config.head_dim * 4
    assert scratch.ratio == 1


def test_a_copy_of_the_cache_would_be_counted():
    def gather_and_scatter(leaf, slots):
        return leaf.at[:, :, slots].set(leaf[:, :, slots + 1])

    shape = (1, 2, 64, 8)
    args = jnp.zeros(shape), jnp.arange(2)
    kept = jax.jit(gather_and_scatter).lower(*args).compile()  # not donated: must copy
    assert count_copies(kept.as_text() or "", shape) > 0


@pytest.mark.parametrize("terminal", [True, False])
def test_a_busy_machine_is_not_judged_and_no_row_is_its_own_peer(terminal):
    rows = [
        compare("T(1)", 2.0, "ms", 2.0, "T(1)"),
        compare("T(4)", 3.0, "ms", 2.0, "T(1)", at_most=1.45),
    ]
    said = {}
    for judged in (True, False):
        file = io.StringIO()
        console = Console(file=file, width=200, force_terminal=terminal)
        print_rows(rows, console, judged=judged)
        said[judged] = file.getvalue()
        assert "<= 1.45" in said[judged]
        assert said[judged].count("T(1)") == 1
    assert "missed" in said[True]
    assert "missed" not in said[False]


def test_a_missed_goal_is_a_fact_not_an_error():
    row = compare("x", 3.0, "ms", 2.0, "y", at_most=1.45)
    assert (row.ratio, row.goal, row.met) == (1.5, "<= 1.45", False)
