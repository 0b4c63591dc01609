"""``bench peers``: peers write our texts, and rows say what was measured."""

from pathlib import Path
from typing import Any

import pytest

from specjax.bench.peers import (
    Arm,
    Timing,
    gain_row,
    in_groups,
    markdown,
    methods,
    ours,
    prompt_rows,
    time_arms,
    total_rows,
)
from specjax.bench.prompts import Completion, Prompt
from specjax.bench.transformers import open_transformers
from specjax.engine.llm import LLM
from specjax.worker import WorkerFailure

PROMPTS = [[65, 66, 67, 65, 66], [70, 71, 72, 73]]


def nothing(prompts, num_tokens):
    raise AssertionError("not called")


ARMS = [
    Arm(peer, version, method, batches, nothing)
    for method in ("plain", "ngram", "draft_model")
    for peer, version, batches in (
        ("specjax", "", (1, 4)),
        ("transformers", "5.0", (1,)),
        ("vLLM", "0.1", (1, 4)),
    )
]


def timed(speeds: dict[tuple[str, str], float]) -> dict[tuple[str, str], list[Timing]]:
    """Make timings of two groups of one text of 10 tokens, at given tokens per second."""
    return {
        key: [Timing([[number] * 10], 10 / speed) for number in range(2)]
        for key, speed in speeds.items()
    }


SPEEDS = {(arm.peer, arm.method): 100.0 for arm in ARMS}
SPEEDS |= {("specjax", "plain"): 200.0, ("specjax", "ngram"): 300.0}


@pytest.mark.parametrize(
    ("method", "options"),
    [("plain", {}), ("ngram", {"options": {"prompt_lookup_num_tokens": 3}}), ("draft_model", {})],
)
def test_transformers_writes_our_text_with_every_method(method, options: dict[str, Any], pair):
    pytest.importorskip("transformers")
    target, draft = Path(pair.target), Path(pair.draft)
    if method == "draft_model":
        options = {"assistant": draft}
    llm = LLM(pair.target, speculative_config=methods(draft)[method])
    mine, seconds = ours(llm.engine, llm.params)(PROMPTS, 12)
    assert seconds > 0
    with open_transformers(target, threads=1, depth=3, **options) as (version, complete):
        theirs, seconds = complete(PROMPTS, 12)
    assert version.startswith("5.")
    assert seconds > 0
    assert [len(tokens) for tokens in mine] == [12, 12]
    assert mine == theirs


def test_a_peer_that_fails_says_why(tmp_path):
    pytest.importorskip("transformers")
    with (
        pytest.raises(WorkerFailure, match=r"transformers died[^$]*config\.json"),
        open_transformers(tmp_path, threads=1),
    ):
        pass


def test_arms_take_turns_and_the_first_turn_is_not_counted():
    turns = []

    def arm(name, batches):
        def complete(prompts, num_tokens):
            turns.append(name)
            first = turns.count(name) == 1
            return [[1] * num_tokens for _ in prompts], 100.0 if first else 2.0

        return Arm(name, "", "plain", batches, complete)

    arms = [arm("a", (1, 4)), arm("b", (4,)), arm("c", (1,))]
    timings = time_arms(arms, [[[1]]], 1, 5, 2, lambda line: None)
    assert turns == ["a", "c"] * 3
    assert timings["a", "plain"][0].speed == 2.5


def test_what_does_not_fill_a_batch_is_left_out():
    assert in_groups([[1], [2], [3], [4], [5]], 2) == [[[1], [2]], [[3], [4]]]


def test_totals_compare_with_every_peer_that_serves_the_batch():
    timings = {batch: timed(SPEEDS) for batch in (1, 4)}
    goals = {("vLLM", "plain", 1): 1.5, ("vLLM", "ngram", 4): 4.0}
    rows = {(row.name, row.against): row for row in total_rows("", ARMS, timings, goals)}
    assert rows["plain, batch 1", "vLLM 0.1"].ratio == pytest.approx(2.0)
    assert rows["plain, batch 1", "vLLM 0.1"].met is True
    assert rows["ngram, batch 4", "vLLM 0.1"].met is False
    assert ("plain, batch 4", "transformers 5.0") not in rows
    assert rows["plain, batch 1: equal texts", "vLLM 0.1"].value == 2
    assert "2.00x | >= 1.5 |" in "\n".join(markdown(list(rows.values())))
    assert not any("equal texts" in line for line in markdown(list(rows.values())))


def test_every_prompt_has_a_row_per_method_and_peer():
    completions = [Completion(Prompt(name, "", [1]), [1], 0.9) for name in "ab"]
    rows = prompt_rows(completions, ARMS, timed(SPEEDS))
    assert len(rows) == 2 * 3 * 2
    assert {row.ratio for row in rows} == {1.0, 2.0, 3.0}


def test_the_gain_is_of_the_better_drafter_over_our_own_plain_decoding():
    row = gain_row(ARMS, timed(SPEEDS))
    assert row.name.startswith("ngram")
    assert row.ratio == pytest.approx(1.5)
    assert row.met
