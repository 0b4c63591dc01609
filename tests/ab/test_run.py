"""Turns, resumption, searches, and servers that misbehave."""

import json
from collections import Counter

import numpy as np
import pytest

from specjax.ab.compare import by_load
from specjax.ab.measures import measure
from specjax.ab.records import read_log
from specjax.ab.run import Plan
from specjax.measure.load import poisson_arrivals
from tests.ab.helpers import ask, compare_urls

QUICK = {"ttft": 0.005, "tpot": 0.002, "tokens": 6}


def test_arms_take_turns_on_the_same_prompts_in_random_order(stub, tmp_path):
    urls = {"a": stub(**QUICK), "b": stub(**QUICK)}
    log = compare_urls(tmp_path, urls, 16, block=2, concurrency=(2,))
    turns = [(unit.block, unit.arm) for unit in log.units]
    assert [block for block, _ in turns] == sorted(2 * list(range(8)))
    assert {block: {arm for b, arm in turns if b == block} for block, _ in turns} == {
        block: {"a", "b"} for block in range(8)
    }
    assert {arm for _, arm in turns[::2]} == {"a", "b"}  # each begins now and then
    for one, two in zip(log.units[::2], log.units[1::2], strict=True):
        assert [r.prompt for r in one.requests] == [r.prompt for r in two.requests]


def test_an_interrupted_run_goes_on_where_it_stopped(stub, tmp_path):
    urls = {"a": stub(**QUICK), "b": stub(**QUICK)}
    whole = compare_urls(tmp_path, urls, 6, block=2, concurrency=(1,))
    path = tmp_path / "log.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + lines[4][:100])  # the fourth turn was being written
    told = []
    again = compare_urls(tmp_path, urls, 6, told.append, block=2, concurrency=(1,))
    assert again.units[:3] == whole.units[:3]
    assert len(told) == 3
    key = [(unit.arm, unit.block) for unit in again.units]
    assert Counter(key) == Counter((unit.arm, unit.block) for unit in whole.units)


def test_a_log_of_another_comparison_is_refused(stub, tmp_path):
    url = stub(**QUICK)
    compare_urls(tmp_path, {"a": url}, 2)
    with pytest.raises(ValueError, match=r"is of another comparison \(ask differ\).* --out"):
        compare_urls(tmp_path, {"a": url}, 2, asked=ask(max_tokens=7))


def test_failures_are_counted_and_never_averaged(stub, tmp_path):
    fail = {"1": "429", "2": "500", "3": "hang", "4": "cut", "5": "garbage"}
    url = stub(**QUICK, fail=fail)
    log = compare_urls(tmp_path, {"a": url}, 8, concurrency=(8,), asked=ask(timeout=1.0))
    (unit,) = log.units
    said = {one.prompt: one.error for one in unit.requests}
    assert said["q0"] is said["q6"] is said["q7"] is None
    assert said["q1"].startswith("HTTP 429")
    assert said["q2"].startswith("HTTP 500")
    assert said["q3"] == "timeout"
    assert said["q4"].startswith("connection lost")
    assert said["q5"].startswith("malformed stream")
    found = measure(log.units)
    assert found.num_requests == 3
    assert sum(found.failures.values()) == 5
    assert found.e2el.mean < 0.5  # the one that hung is not in it


def test_a_server_that_counts_no_tokens_is_an_error_not_a_number(stub, tmp_path):
    url = stub(**QUICK, usage="none", ids=False)
    with pytest.raises(ConnectionError, match="arm a fails: no usage"):
        compare_urls(tmp_path, {"a": url}, 2)


def test_a_server_that_dies_stops_the_run_and_keeps_what_was_measured(stub, tmp_path):
    urls = {"a": stub(**QUICK), "b": stub(**QUICK)}
    process = stub.processes[urls["b"]]

    def kill(line):
        if "3/5" in line:
            process.kill()
            process.wait()

    with pytest.raises(ConnectionError, match=r"arm b can no longer be reached.*log.jsonl"):
        compare_urls(tmp_path, urls, 10, kill, block=2, concurrency=(2,))
    assert len(read_log(tmp_path / "log.jsonl").units) in (4, 5)


def test_counters_are_differences(stub, tmp_path):
    url = stub(**QUICK | {"tokens": 9}, per_chunk=4)
    log = compare_urls(tmp_path, {"a": url}, 4, block=2, concurrency=(1,))
    assert [unit.counters["num_drafts"] for unit in log.units] == [4, 4]  # warm-up not among them
    counted = measure(log.units).counters
    assert counted.num_draft_tokens == 24
    assert counted.num_accepted_tokens_per_pos == (8, 8, 8)


def test_a_search_finds_the_highest_concurrency_within_the_objective(stub, tmp_path):
    """The stub's TPOT is the same at every load, so all loads pass, or none."""
    url = stub(**QUICK | {"tpot": 0.01})
    some = compare_urls(tmp_path / "1", {"a": url}, 8, slo={"tpot": 0.05}, most=6)
    assert [unit.concurrency for unit in some.units] == [1, 2, 4, 6]
    none = compare_urls(tmp_path / "2", {"a": url}, 8, slo={"tpot": 0.001}, most=6)
    assert [unit.concurrency for unit in none.units] == [1]


def test_a_run_stops_when_its_interval_is_narrow_enough(stub, tmp_path):
    urls = {"a": stub(**QUICK | {"tpot": 0.02}), "b": stub(**QUICK | {"tpot": 0.01})}
    log = compare_urls(tmp_path, urls, 30, block=5, concurrency=(5,), width=0.1)
    assert 2 <= len(log.units) < 12


def test_an_open_loop_sends_at_its_rate_and_alike_to_all_arms(stub, tmp_path):
    urls = {"a": stub(**QUICK), "b": stub(**QUICK)}
    log = compare_urls(tmp_path, urls, 40, rate=100.0)
    planned = np.array(poisson_arrivals(100.0, 40, seed=0))
    assert planned[-1] == pytest.approx(0.4, rel=0.3)
    for unit in log.units:
        late = np.array([one.sent for one in unit.requests]) - planned
        assert late.min() > -1e-3
        assert late.min() < 0.1  # a busy machine sends many late, but not all
    assert {load for _, load in by_load(log.units)} == {0}


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"concurrency": (0,)}, "concurrency must be at least 1, got 0"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"slo": {"tpo": 1.0}}, "an objective is one of ttft, tpot, e2el"),
        ({"most": 4}, "a search needs an objective: --slo tpot=50ms"),
        ({"rate": -1.0}, "rate must be positive"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(plan, said):
    with pytest.raises(ValueError, match=said):
        Plan(**plan)


def test_a_line_that_is_no_log_is_named(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"manifest": {}}\n{"unit": {"arm": "a"}}\n')
    with pytest.raises(ValueError, match=r"log.jsonl line 2 is not of a specjax ab log"):
        read_log(path)
    path.write_text(json.dumps({"request": "1", "step": 0}) + "\n")
    with pytest.raises(ValueError, match="line 1 is not a line of a specjax ab log"):
        read_log(path)
