"""``bench theory`` at a small scale: its rows, its goals, and the peer that writes the same."""

import io
import json
import math

import pytest
from rich.console import Console

from specjax.bench import plain_chain
from specjax.bench.report import number
from specjax.bench.theory import ALPHA, DEPTH, VOCAB, Scale, at_least, at_most, bench_theory
from specjax.simulate import fit_costs, fixed_k, serving
from specjax.simulate.workload import closed_loop

SMALL = Scale(
    surface=(8, 4, 2),
    rows=16,
    rounds=8,
    plain_rounds=8,
    clients=4,
    requests=8,
    output=12,
    seeds=20,
    law_rounds=8,
)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Run the benchmark once; return its rows and what it printed and wrote."""
    file, said = tmp_path_factory.mktemp("bench") / "theory.json", io.StringIO()
    rows = bench_theory(file, scale=SMALL, reps=2, console=Console(file=said, width=200))
    return rows, json.loads(file.read_text()), said.getvalue()


def test_every_number_is_written_and_judged_by_its_own_goal(written):
    rows, stored, said = written
    assert [row["name"] for row in stored] == [row.name for row in rows]
    goals = [(row["name"].split(",")[0], row["goal"]) for row in stored if row["goal"]]
    assert goals == [
        ("speedup surface", "<= 50 ms"),
        ("chain", ">= 300000 tok/s"),
        ("chain", ">= 8.96e+06 tok/s"),
        ("chain over plain Python", ">= 50"),
        ("chain", ">= 20 seeds"),
        ("serving at concurrency 4", ">= 200"),
        ("serving", ">= 200"),
        ("serving", ">= 20 seeds"),
    ]
    for row in stored:
        assert math.isfinite(row["value"])
        assert row["value"] > 0
        line = next(line for line in said.splitlines() if line.startswith(f"{row['name']}: "))
        assert f"{number(row['value'])} {row['unit']}" in line
        if row["goal"]:
            judged = row["value"] if row["ratio"] is None else row["ratio"]
            side, bound = row["goal"].split()[:2]
            assert row["met"] == (
                judged <= float(bound) if side == "<=" else judged >= float(bound)
            )


def test_the_numbers_are_of_the_runs_they_name(written):
    values = {row["name"]: row["value"] for row in written[1]}
    speed = values[f"chain, V = {VOCAB}, K = {DEPTH}, alpha = {ALPHA}"]
    assert values["chain over plain Python, number for number"] == speed
    assert values["chain over plain Python, its own noise"] == speed
    assert values["chain, seeds in one call"] == SMALL.seeds
    assert values["serving, seeds in one call"] == SMALL.seeds
    load = closed_loop(SMALL.clients, SMALL.requests, 200, SMALL.output, 0.6, output_cv=0.5)
    costs, policy = fit_costs()[0], fixed_k(3, SMALL.clients)
    one = serving(load, costs, policy, SMALL.clients)
    many = serving(load, costs, policy, SMALL.clients, num_seeds=SMALL.seeds)
    assert values[f"serving at concurrency {SMALL.clients}, simulated time"] == float(one.end)
    name = f"serving, {SMALL.seeds} seeds in one call, simulated time"
    assert values[name] == float(many.end.sum())


def test_ratios_are_values_over_peers_of_the_same_run(written):
    for row in written[1]:
        if row["peer"] is not None:
            assert row["ratio"] == pytest.approx(row["value"] / row["peer"])
            assert row["value"] > 0


def test_goals_bound_values_from_their_side():
    assert at_most("x", 1.0, "ms", 2).met
    assert not at_most("x", 3.0, "ms", 2).met
    assert at_least("x", 3.0, "tok/s", 2).met
    assert not at_least("x", 1.0, "tok/s", 2).met


def test_the_plain_loops_text_is_lossless_too():
    """With q = p everything is accepted; with unlike laws the text still follows the target."""
    same = [[0.0, 1.0], [1.0, 0.0]]
    noise = plain_chain.unaddressed(0)
    assert len(plain_chain.plain_chain(same, same, noise, 1.0, 3, 20)) == 2 + 20 * 4
    never = [[0.0, -30.0], [0.0, -30.0]]
    text = plain_chain.plain_chain([[-30.0, 0.0]] * 2, never, noise, 1.0, 3, 20)
    assert text == [0] + [1] * 21
