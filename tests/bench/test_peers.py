"""``bench peers``: peers write our texts, and rows say what was measured."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from specjax.bench import engines
from specjax.bench.arms import Answer, Arm, Timing, in_groups, time_arms
from specjax.bench.engines import OURS, VLLM, open_arms, open_engine, speculative_config
from specjax.bench.ours import completer
from specjax.bench.peers import (
    BATCHES,
    BUNDLED_ARMS,
    BUNDLED_GOALS,
    SHAPE_ARMS,
    Measured,
    Shape,
    arm_cells,
    bench_peers,
    gain_row,
    markdown,
    memory_rows,
    pairs,
    prompt_rows,
    share_rows,
    total_rows,
)
from specjax.bench.plan import QWEN3_100M
from specjax.bench.prompts import Chosen, Completion, Prompt, fitting
from specjax.bench.transformers import open_transformers
from specjax.bundled import resolve
from specjax.engine.llm import LLM
from specjax.host.environments import EnvironmentMissing
from specjax.host.worker import WorkerFailure
from specjax.oracle.environment import OracleMissing

PROMPTS = [[65, 66, 67, 65, 66], [70, 71, 72, 73]]
PEERS = [(engine, "plain") for engine in ("specjax", *VLLM, "transformers", "llama.cpp")]
PEERS += [("transformers", "ngram"), ("transformers", "draft_model"), ("llama.cpp", "ngram")]


def nothing(prompts, num_tokens):
    raise AssertionError("not called")


ARMS = [
    Arm(engine, label, method, batches, nothing)
    for method in ("plain", "ngram")
    for engine, label, batches in (
        ("specjax", "specjax", BATCHES),
        ("specjax bfloat16", "specjax bfloat16", BATCHES),
        ("vLLM", "vLLM 0.1", BATCHES),
        ("vLLM float32", "vLLM 0.1 float32", BATCHES),
        ("transformers", "transformers 5.0", (1,)),
    )
]


def timed(speeds: dict[tuple[str, str], float]) -> dict[tuple[str, str], list[Timing]]:
    """Make timings of two groups of one text of 10 tokens, at given tokens per second."""
    return {
        key: [Timing([[number] * 10], 10 / speed, 10**9) for number in range(2)]
        for key, speed in speeds.items()
    }


SPEEDS = {arm.key: 100.0 for arm in ARMS}
SPEEDS |= {("specjax", "plain"): 200.0, ("specjax", "ngram"): 300.0}


@pytest.mark.parametrize(
    ("engine", "method"),
    [
        pytest.param(*key, marks=[pytest.mark.oracle] if key[0] in VLLM else [], id="-".join(key))
        for key in PEERS
    ],
)
def test_every_engine_writes_our_text(engine, method, pair):
    """In bfloat16 as well: of these greedy tokens none is a near tie."""
    target, draft, prompts = Path(pair.target), Path(pair.draft), PROMPTS
    if engine == "transformers":
        pytest.importorskip("transformers")
    if engine in VLLM:  # it has no attention for heads as small as the tiny pair's
        target, draft = resolve("bundled"), resolve("bundled:draft")
        prompts = [one.tokens for one in fitting(LLM("bundled"), 12)[:2]]
    mine = completer(LLM(str(target)))(prompts, 12)
    try:
        with open_engine(engine, method, target, draft, 2) as (version, complete):
            theirs = complete(prompts, 12)
    except (EnvironmentMissing, OracleMissing) as missing:
        pytest.skip(str(missing))
    assert version[0].isdigit()
    assert theirs.seconds > 0
    assert theirs.peak_bytes is None or theirs.peak_bytes > 10**7
    assert [len(tokens) for tokens in mine.tokens] == [12, 12]
    assert mine.tokens == theirs.tokens


def test_a_peer_that_fails_says_why(tmp_path):
    pytest.importorskip("transformers")
    with (
        pytest.raises(WorkerFailure, match=r"transformers died[^$]*config\.json"),
        open_transformers(tmp_path, threads=1),
    ):
        pass


def test_peers_that_are_not_installed_are_left_out_aloud(monkeypatch, tmp_path):
    for variable in ("SPECJAX_ORACLE", "SPECJAX_LLAMA_CPP"):
        monkeypatch.setenv(variable, str(tmp_path))
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 8}')
    wanted, said = [*((engine, "plain") for engine in VLLM), ("llama.cpp", "plain")], []
    with ExitStack() as opened:
        assert open_arms(opened, wanted, tmp_path, tmp_path, BATCHES, said.append) == []
    left_out = [line for line in said if "left out" in line]
    assert len(left_out) == 2
    assert "specjax oracle install" in left_out[0]
    assert "specjax bench install-llama-cpp" in left_out[1]


def test_vllm_runs_with_its_defaults_and_what_was_set_is_in_its_name():
    assert VLLM["vLLM"] == {"dtype": "auto", "enforce_eager": False}
    assert VLLM["vLLM float32"] == {"dtype": "float32", "enforce_eager": False}
    assert VLLM["vLLM eager float32"] == {"dtype": "float32", "enforce_eager": True}


def test_every_goal_has_its_arms_and_its_batches():
    for (ours, theirs, method), least in BUNDLED_GOALS.items():
        assert {(ours, method), (theirs, method)} <= set(BUNDLED_ARMS)
        assert len(least) == len(BATCHES)
    for arms in SHAPE_ARMS.values():
        assert {("specjax bfloat16", "plain"), ("vLLM", "plain")} <= set(arms)


def test_k_is_the_same_for_ours_and_vllm(pair):
    ngram = speculative_config("ngram", Path(pair.draft))
    draft = speculative_config("draft_model", Path(pair.draft))
    assert ngram is not None
    assert draft is not None
    assert ngram["num_speculative_tokens"] == draft["num_speculative_tokens"] == engines.DEPTH


def test_an_unknown_section_is_refused_before_anything_starts():
    with pytest.raises(ValueError, match=r"unknown section '7B': use some of bundled, 88M, 0\.6B"):
        bench_peers(None, only=["7B"])


def test_arms_take_turns_and_the_first_turn_is_not_counted():
    turns = []

    def arm(name, batches):
        def complete(prompts, num_tokens):
            turns.append(name)
            first = turns.count(name) == 1
            return Answer([[1] * num_tokens for _ in prompts], 100.0 if first else 2.0, 7)

        return Arm(name, name, "plain", batches, complete)

    arms = [arm("a", (1, 4)), arm("b", (4,)), arm("c", (1,))]
    timings = time_arms(arms, [[[1]]], 1, 5, 2, lambda line: None)
    assert turns == ["a", "c"] * 3
    assert timings["a", "plain"] == [Timing([[1] * 5], 2.0, 7)]
    assert timings["a", "plain"][0].speed == 2.5


def test_the_last_batch_is_filled_from_the_beginning():
    groups = in_groups([[1], [2], [3]], 2)
    assert groups == [[[1], [2]], [[3], [1]]]
    assert in_groups([[1], [2]], 4) == [[[1], [2], [1], [2]]]


def test_our_bfloat16_is_only_compared_with_engines_that_compute_in_it():
    compared = {(mine.engine, other.engine) for mine, other in pairs(ARMS)}
    assert ("specjax bfloat16", "vLLM") in compared
    assert ("specjax bfloat16", "vLLM float32") not in compared
    assert {mine for mine, _ in compared} == set(OURS)


def test_totals_compare_with_every_peer_that_serves_the_batch():
    timings = {batch: timed(SPEEDS) for batch in BATCHES}
    for batch in BATCHES[1:]:
        for method in ("plain", "ngram"):
            del timings[batch]["transformers", method]
    goals = {("specjax", "vLLM", "plain"): (1.5, 2.5, 1.0, 1.0)}
    rows = total_rows("toy", ARMS, timings, goals)
    found = {(row.name, row.against): row for row in rows}
    first = found["toy: specjax plain, batch 1", "vLLM 0.1"]
    assert (first.ratio, first.met) == (pytest.approx(2.0), True)
    assert found["toy: specjax plain, batch 4", "vLLM 0.1"].met is False
    assert found["toy: specjax plain, batch 4", "vLLM 0.1 float32"].goal is None
    assert ("toy: specjax plain, batch 4", "transformers 5.0") not in found
    assert found["toy: specjax plain, batch 1: equal texts", "vLLM 0.1"].value == 2
    lines = markdown([], rows, ["said"])
    (line,) = [one for one in lines if one.startswith("| toy: specjax plain | vLLM 0.1 |")]
    cells = line.strip("| ").split(" | ")[2:]
    assert cells[:2] == ["2.00x (>= 1.5)", "2.00x (>= 2.5, missed)"]
    assert not any("equal texts" in one for one in lines)
    assert lines[-1] == "said"


def test_every_prompt_has_a_row_per_method_and_peer():
    completions = [Completion(Prompt(name, "", [1]), [1], 0.9) for name in "ab"]
    rows = prompt_rows("toy", Chosen("shipped", completions, 2, 2), ARMS, timed(SPEEDS))
    assert len(rows) == 2 * len(pairs(ARMS))
    assert {row.ratio for row in rows} == {1.0, 2.0, 3.0}


def test_the_gain_is_of_our_best_method_over_the_fastest_plain_decoding_of_any_engine():
    row = gain_row("toy", ARMS, timed(SPEEDS))
    assert "(ngram)" in row.name
    assert (row.ratio, row.against, row.met) == (pytest.approx(1.5), "specjax plain", True)
    row = gain_row("toy", ARMS, timed(SPEEDS | {("vLLM", "plain"): 400.0}))
    assert (row.ratio, row.against, row.met) == (pytest.approx(0.75), "vLLM 0.1 plain", False)


def test_a_steps_share_of_the_bandwidth_is_of_decoding_alone():
    """Of 5 s the first token takes 1; 4 more read 8 GB each, at 8 of 10 GB/s."""
    (arm, *_), shape = ARMS, Shape(QWEN3_100M, 16, 5)
    whole, first = {arm.key: [Timing([[1] * 5], 5.0)]}, {arm.key: [Timing([[1]], 1.0)]}
    (row,) = share_rows("toy", [arm], whole, first, shape, int(8e9), 10e9)
    assert (row.ratio, row.met) == (pytest.approx(0.8), True)
    (row,) = memory_rows([Measured("toy", arm, {1: 1.0}, int(12e9), None)], int(8e9))
    assert (row.ratio, row.goal, row.met) == (pytest.approx(1.5), "<= 1.4", False)


def test_an_arms_own_figures_are_a_line_of_a_table():
    one = Measured("toy", ARMS[4]._replace(start=3.0), {1: 1234.0}, int(2e9), 0.0125)
    assert arm_cells(one) == [
        "toy",
        "transformers 5.0",
        "plain",
        "1,234",
        *"---",
        "12.5",
        "2,000",
        "3.0",
    ]
