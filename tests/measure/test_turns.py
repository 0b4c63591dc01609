"""Calls run in turns, and what the warm-up returned is dropped."""

from specjax.measure.turns import median_in_turns, take_turns, tell


def test_calls_take_turns_and_the_warm_up_is_dropped():
    order, repetitions = [], []

    def call(name):
        order.append(name)
        return len(order)

    calls = [lambda: call("a"), lambda: call("b")]
    results = take_turns(calls, 2, warm_up=1, started=repetitions.append)
    assert order == ["a", "b"] * 3
    assert results == [[3, 5], [4, 6]]
    assert repetitions == [0, 1, 2]


def test_a_line_says_which_turn_begins():
    lines = []
    take_turns([lambda: None], 2, warm_up=1, started=tell(lines.append, "batch 4", 2))
    assert lines == [
        "batch 4: warming up ...", "batch 4: run 1 of 2 ...", "batch 4: run 2 of 2 ..."
    ]  # fmt: skip


def test_medians_are_those_of_each_call():
    values = iter([100.0, 1.0, 100.0, 3.0, 100.0, 2.0])
    (median,) = median_in_turns([lambda: next(values) + next(values)], 2, warm_up=1)
    assert median == 102.5
