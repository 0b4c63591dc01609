"""Objectives are read as users write them, and a request meets all of them or does not count."""

import pytest

from specjax.measure.objectives import meets, parse_objectives


def test_times_are_written_with_their_unit():
    assert parse_objectives([("ttft", "2s"), ("tpot", "50ms")]) == {"ttft": 2.0, "tpot": 0.05}


@pytest.mark.parametrize(
    ("name", "time", "said"),
    [
        ("tpot", "50", "a time is written 50ms or 2s"),
        ("tpo", "50ms", "an objective is one of ttft, tpot, e2el"),
        ("tpot", "0ms", "a positive time, got tpot=0.0"),
    ],
)
def test_what_is_no_objective_is_refused(name, time, said):
    with pytest.raises(ValueError, match=said):
        parse_objectives([(name, time)])


def test_a_request_meets_all_objectives_or_does_not_count():
    times = {"ttft": 0.2, "tpot": 0.01, "e2el": 1.0}
    assert meets(times, {})
    assert meets(times, {"ttft": 0.2, "e2el": 1.0})
    assert not meets(times, {"ttft": 0.2, "tpot": 0.009})
