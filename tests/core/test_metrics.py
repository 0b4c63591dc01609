"""Counters of speculation: sums, rates and vLLM's names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax.core.metrics import Counter, SpecDecodeCounters, Vector, distinct_bigrams

K = 4
STEPS = st.lists(
    st.integers(0, K).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))), max_size=12
)


def count(steps):
    return SpecDecodeCounters.zeros(K).add([d for d, _ in steps], [a for _, a in steps])


@given(STEPS, STEPS)
def test_counting_in_parts_is_counting_the_whole(first, second):
    assert count(first).merge(count(second)) == count(first + second)


@given(STEPS)
def test_per_position_counts_fall_and_sum_to_accepted(steps):
    counters = count(steps)
    per_pos = counters.num_accepted_tokens_per_pos
    assert sum(per_pos) == counters.num_accepted_tokens == sum(a for _, a in steps)
    assert list(per_pos) == sorted(per_pos, reverse=True)
    assert counters.num_drafts == sum(d > 0 for d, _ in steps)


def test_rates_follow_vllm_s_definitions():
    counters = count([(4, 2), (4, 0), (0, 0), (2, 2)])
    assert counters.mean_acceptance_length == 1 + 4 / 3
    assert counters.acceptance_rate == 4 / 10
    assert counters.acceptance_rate_per_pos == (2 / 3, 2 / 3, 0, 0)


def test_without_drafts_rates_are_none():
    counters = count([(0, 0)])
    assert counters == SpecDecodeCounters.zeros(K)
    assert counters.mean_acceptance_length is None
    assert counters.acceptance_rate is None
    assert counters.acceptance_rate_per_pos is None


@pytest.mark.parametrize(("drafted", "accepted"), [([1], [2]), ([6], [5]), ([1], [-1]), ([1], [])])
def test_impossible_counts_are_refused(drafted, accepted):
    with pytest.raises(ValueError, match=r"accepted"):
        SpecDecodeCounters.zeros(K).add(drafted, accepted)


def test_metrics_carry_vllm_s_names():
    assert count([(3, 1)]).to_metrics() == [
        Counter("vllm:spec_decode_num_drafts", 1),
        Counter("vllm:spec_decode_num_draft_tokens", 3),
        Counter("vllm:spec_decode_num_accepted_tokens", 1),
        Vector("vllm:spec_decode_num_accepted_tokens_per_pos", (1, 0, 0, 0)),
    ]


def test_a_text_that_repeats_itself_has_few_distinct_bigrams():
    assert distinct_bigrams([1, 2] * 20) == 2 / 39
    assert distinct_bigrams(list(range(40))) == 1.0
    assert distinct_bigrams([]) == distinct_bigrams([5]) == 1.0
