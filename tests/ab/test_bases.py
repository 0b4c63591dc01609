"""The base of every arm, and gains within and across engines in tables, figures and logs."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from specjax.ab.bases import choose_bases
from specjax.ab.compare import by_load
from specjax.ab.event_logs import rounds_of, to_events, write_event_logs
from specjax.ab.figures import drafts_of
from specjax.ab.findings import find, rows
from specjax.ab.records import Unit, failed, read_log
from specjax.ab.tables import markdown, percent
from specjax.cli.app import app
from specjax.traces.events import concurrency, read_trace, to_trace

RECORDED = Path("docs/ab.jsonl")
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


def arm(label, kind="url", config=None):
    return {"label": label, "kind": kind, "config": config}


MIXED = [
    arm("vLLM", "vllm"),
    arm("specjax", "specjax"),
    arm("vLLM ngram", "vllm", NGRAM),
    arm("specjax ngram", "specjax", NGRAM),
    arm("serve ngram", "serve", NGRAM),
]


@pytest.mark.parametrize(
    ("arms", "chosen", "first", "own"),
    [
        (MIXED, (), "vLLM", "vLLM vLLM vLLM specjax vLLM"),  # whatever their order
        (MIXED, ("specjax",), "specjax", "specjax specjax specjax specjax specjax"),
        ([arm("a"), arm("b"), arm("c")], (), "a", "a a a"),  # of URLs nothing is known
        ([arm("a"), arm("a2"), arm("b"), arm("b2")], ("a", "b"), "a", "a a a b"),
        ([arm("a"), arm("a2"), arm("b"), arm("b2")], ("b", "a"), "b", "b a b b"),
        ([arm("x", "specjax", NGRAM), arm("y", "specjax")], (), "x", "x x"),
    ],
)
def test_each_arm_has_the_base_of_its_engine(arms, chosen, first, own):
    found = choose_bases(arms, chosen)
    assert found.first == first
    assert [found.own[one["label"]] for one in arms] == own.split()


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (["--base", "vllm"], "--base vllm: no such arm; there are vLLM, vLLM ngram"),
        (["--base", "serve", "--base", "serve"], "each base is given once, got serve, serve"),
    ],
)
def test_a_wrong_base_is_one_line(chosen, said):
    done = CliRunner().invoke(app, ["ab", "replay", str(RECORDED), *chosen])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


@pytest.fixture(scope="module")
def recorded():
    return find(read_log(RECORDED))


def test_gains_within_and_across_engines_stand_side_by_side(recorded):
    shown = {(one.measures.concurrency, one.measures.arm): one for one in rows(recorded)}
    assert len(shown) == 24
    one = shown[4, "specjax draft_model"]
    assert one.own.base.arm == "specjax"
    assert one.own.tpot_gain.low < 1 < one.own.tpot_gain.high  # perhaps no gain at all ...
    assert one.first.base.arm == "vLLM"
    assert one.first.tpot_gain.estimate > 3  # ... which that over another engine hides
    plain = shown[4, "specjax"]
    product = plain.own.tpot_gain.estimate * one.own.tpot_gain.estimate
    assert product == pytest.approx(one.first.tpot_gain.estimate)
    assert shown[1, "vLLM ngram"].first is None
    text = "\n".join(markdown(recorded))
    (line,) = [one for one in text.splitlines() if one.startswith("| 4 | specjax draft_model ")]
    assert percent(one.own.tpot_gain) in line
    assert percent(one.first.tpot_gain) in line
    assert "| base | TPOT gain | TPS gain | TPOT gain over vLLM | TPS gain over vLLM |" in text


def test_a_gain_is_predicted_from_plain_steps_of_the_same_engine_only(recorded):
    predicted = 0
    for one, why in zip(recorded.comparisons, recorded.why, strict=True):
        if why is not None:
            predicted += 1
            assert one.base.arm == recorded.bases.own[one.arm.arm]
            assert why.speedup == pytest.approx(one.tpot_gain.estimate, rel=0.2)
    assert predicted == 18


def test_an_event_log_holds_one_load(recorded, tmp_path):
    loads = by_load(recorded.log.units)
    for load in (1, 4):
        units = loads["bundled", load]["specjax draft_model"]
        trace = to_trace(to_events(units))
        assert len(trace.names) == 48
        assert trace.emitted.sum() == 48 * 64
        assert concurrency(trace) == pytest.approx(load, rel=0.25)  # decoding, not prefill
    names = [path.name for path in write_event_logs(recorded.log, tmp_path)]
    assert "events-vLLM-bundled-load-1.jsonl" in names  # plain, though chunks were merged
    assert all("-load-" in name for name in names)
    assert read_trace(tmp_path / "events-serve eagle3-bundled-load-4.jsonl").emitted.sum() == 3072


def record(**changes):
    return failed("p", 0.0, 1.0, "")._replace(error=None, **changes)


def test_rounds_are_known_where_chunks_were_merged():
    merged = record(
        times=(0.1, 0.3), counts=(1, 6), output_tokens=7, accepted=(2, 0, 3), drafted=(3, 3, 3)
    )
    rounds = [(0, 0, 1), (3, 2, 3), (3, 0, 1), (3, 3, 2)]  # the text ended in the third draft
    assert rounds_of(merged, plain=False) == rounds
    unit = Unit("a", "d", 1, 0, 1.0, (merged,), None)
    assert [one.time for one in to_events([unit])] == [0.1, 0.3, 0.3, 0.3]
    undrafted = merged._replace(output_tokens=10)  # a token that no reported round emitted
    assert rounds_of(undrafted, plain=False) is None
    plain = record(times=(0.1, 0.3), counts=(1, 2), output_tokens=3)
    assert rounds_of(plain, plain=False) is None  # perhaps a draft
    assert rounds_of(plain, plain=True) == [(0, 0, 1)] * 3


def test_intervals_of_acceptance_are_over_requests_where_requests_tell(recorded):
    units = by_load(recorded.log.units)["bundled", 1]
    counted = {one.arm: one.counters for one in recorded.measures if one.concurrency == 1}
    label = "serve ngram"
    drafts = drafts_of(units[label], counted[label])
    assert drafts.accepted.size == counted[label].num_drafts
    assert len(np.unique(drafts.request)) == 48
    assert drafts_of(units["vLLM ngram"], counted["vLLM ngram"]) is None  # counters only
