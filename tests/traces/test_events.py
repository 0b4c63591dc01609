"""A log is written whole, reads back as it was, and says what is wrong with a line."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax.traces import Event, read_trace, to_events, to_trace, write_trace
from tests.traces.synthetic import draw

GOOD = [
    {"request": "a", "step": 0, "drafted": 0, "accepted": 0, "emitted": 1, "time": 0.5},
    {"request": "a", "step": 1, "drafted": 4, "accepted": 2, "emitted": 3, "time": 0.75},
    {"request": "a", "step": 2, "drafted": 4, "accepted": 4, "emitted": 2, "time": 1},
]


@st.composite
def logs(draw_):
    events = []
    for name in draw_(st.lists(st.text(min_size=1), unique=True, min_size=1, max_size=3)):
        times = sorted(draw_(st.lists(st.floats(0, 1e6), min_size=1, max_size=5)))
        events.append(Event(name, 0, 0, 0, 1, times[0]))
        for step, time in enumerate(times[1:], start=1):
            drafted = draw_(st.integers(0, 5))
            accepted = draw_(st.integers(0, drafted))
            events.append(Event(name, step, drafted, accepted, accepted + 1, time))
    return events


@settings(deadline=None, max_examples=50)
@given(logs())
def test_what_is_written_is_read(tmp_path_factory, events):
    path = tmp_path_factory.mktemp("log") / "trace.jsonl"
    write_trace(path, events)
    assert sorted(to_events(read_trace(path))) == sorted(events)
    times = [json.loads(line)["time"] for line in path.read_text().splitlines()]
    assert times == sorted(times)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_documented_lines_are_a_log(tmp_path):
    trace = read_trace(write(tmp_path / "log.jsonl", [{**row, "engine": "x"} for row in GOOD]))
    assert trace.names == ("a",)
    assert trace.depth == 4
    np.testing.assert_array_equal(trace.emitted, [1, 3, 2])
    np.testing.assert_array_equal(trace.rounds, [False, True, True])


@pytest.mark.parametrize(
    ("line", "change", "said"),
    [
        (2, {"accepted": 5}, "need 0 <= accepted <= drafted, got accepted 5 of 4"),
        (2, {"emitted": 4}, "need 1 <= emitted <= accepted [+] 1, got emitted 4"),
        (2, {"emitted": 2}, "line 3: .* step 1 emitted 2 of 3 tokens, as only the last"),
        (2, {"step": 2}, "expected step 1; is a line missing"),
        (2, {"time": 0.25}, "time 0.25 lies before the 0.5"),
        (2, {"time": -1}, "must be seconds since the log began, got -1"),
        (2, {"time": "now"}, "time must be a number of seconds, got 'now'"),
        (2, {"drafted": 4.0}, "drafted must be a whole number, got 4.0"),
        (2, {"drafted": True}, "drafted must be a whole number, got True"),
        (1, {"drafted": 3}, "begins with step 0, its prefill"),
    ],
)
def test_errors_name_the_line_the_value_and_the_remedy(tmp_path, line, change, said):
    rows = [dict(row) for row in GOOD]
    rows[line - 1] |= change
    with pytest.raises(ValueError, match=said):
        read_trace(write(tmp_path / "log.jsonl", rows))


def test_what_is_no_log_is_refused(tmp_path):
    path = tmp_path / "log.jsonl"
    for text, said in (
        ("", "has no events; a line of a log reads"),
        ("\n{oops}\n", "line 2: not JSON"),
        ("[1]\n", "line 1: lacks request, step"),
        ('{"request": 1, "step": 0}\n', "lacks drafted, accepted, emitted, time"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            read_trace(path)
    with pytest.raises(ValueError, match="no events"):
        to_trace([])


def test_a_bad_log_replaces_nothing(tmp_path):
    path = write(tmp_path / "log.jsonl", GOOD)
    before = path.read_text()
    with pytest.raises(ValueError, match="expected step"):
        write_trace(path, [Event("a", 0, 0, 0, 1, 0.0), Event("a", 2, 1, 0, 1, 0.0)])
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["log.jsonl"]


def test_requests_stay_apart():
    trace = draw([0.5, 0.9], 20)
    np.testing.assert_array_equal(np.bincount(trace.request), [21, 21])
    one = trace.where(trace.request == 1)
    assert one.names == trace.names
    np.testing.assert_array_equal(one.step, np.arange(21))
