"""Outputs: the per-request summary agrees with the aggregate counters."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax.core.metrics import SpecDecodeCounters
from specjax.engine.outputs import CompletionOutput, Logprob, RequestOutput, SpecDecodeMetrics

K = 3
STEPS = st.lists(
    st.integers(0, K).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))), max_size=12
)


@given(STEPS)
def test_the_summary_agrees_with_the_counters(steps):
    drafted, accepted = [d for d, _ in steps], [a for _, a in steps]
    metrics = SpecDecodeMetrics.from_steps(drafted, accepted, K)
    counters = SpecDecodeCounters.zeros(K).add(drafted, accepted)
    assert metrics.num_spec_steps == counters.num_drafts == sum(metrics.acceptance_histogram)
    assert metrics.num_draft_tokens == sum(metrics.per_step_drafted) == sum(drafted)
    assert metrics.num_accepted_draft_tokens == sum(accepted)
    assert sum(j * c for j, c in enumerate(metrics.acceptance_histogram)) == sum(accepted)
    assert metrics.mean_acceptance_length == counters.mean_acceptance_length
    assert 0 not in metrics.per_step_drafted


def test_to_dict_is_vllm_s_record_in_json():
    metrics = SpecDecodeMetrics.from_steps([3, 0, 3], [2, 0, 0], K).to_dict()
    assert json.loads(json.dumps(metrics)) == metrics
    assert metrics == {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 1 / 3,
        "acceptance_histogram": [1, 0, 1, 0],
        "num_spec_steps": 2,
        "num_accepted_draft_tokens": 2,
        "num_draft_tokens": 6,
        "per_step_accepted": [2, 0],
        "per_step_drafted": [3, 3],
    }


def test_without_drafts_rates_are_none_and_the_histogram_is_empty():
    metrics = SpecDecodeMetrics.from_steps([0, 0], [0, 0], K).to_dict()
    assert metrics["mean_acceptance_length"] is None
    assert metrics["draft_acceptance_rate"] is None
    assert metrics["acceptance_histogram"] == [0] * (K + 1)


def test_more_accepted_than_drafted_is_refused():
    with pytest.raises(ValueError, match="accepted 2 of 1"):
        SpecDecodeMetrics.from_steps([1], [2], K)


def test_outputs_read_as_in_the_guides():
    completion = CompletionOutput(
        0, " Paris", (7,), -0.5, [{7: Logprob(-0.5, 1, " Paris")}], "stop"
    )
    output = RequestOutput("0", "The capital is", (1, 2, 3), None, [completion], finished=True)
    assert output.outputs[0].text == " Paris"
    assert output.outputs[0].finished()
    assert output.outputs[0].stop_reason is None
    assert output.kv_transfer_params is None
    assert output.outputs[0].logprobs[0][7].rank == 1
