"""Events are put together whatever the pieces they arrive in, each at the time of its last byte."""

import json

import pytest

from specjax.measure.streaming import events, put_together


def event(**fields) -> bytes:
    return b"data: " + json.dumps({"choices": [], **fields}).encode() + b"\n\n"


def choice(text: str, tokens: list[int] | None = None, reason: str | None = None) -> bytes:
    found = {"text": text, "finish_reason": reason}
    return event(choices=[found if tokens is None else {**found, "token_ids": tokens}])


WHOLE = [
    (0.1, choice("a", [1])),
    (0.2, choice("bc", [2, 3])),
    (0.3, choice("", [], "length") + event(usage={"prompt_tokens": 5, "completion_tokens": 3})),
    (0.4, b"data: [DONE]\n\n"),
]


def test_a_stream_is_put_together():
    stream = put_together(WHOLE, 7.0, 0.5)
    assert (stream.text, stream.tokens, stream.finish_reason) == ("abc", [1, 2, 3], "length")
    assert (stream.times, stream.counts) == ([0.1, 0.2], [1, 2])
    assert (stream.input_tokens, stream.output_tokens) == (5, 3)
    assert (stream.sent, stream.end, stream.metrics) == (7.0, 0.5, {})


def test_an_event_came_with_its_last_byte():
    data = choice("a")
    pieces = [(0.1, data[:9]), (0.2, data[9:] + data[:20]), (0.3, data[20:])]
    assert [when for when, _ in events(pieces)] == [0.2, 0.3]


def test_chunks_without_ids_have_no_counts():
    stream = put_together([(0.1, choice("a", [1])), (0.2, choice("b", None, "stop"))], 0.0, 0.2)
    assert (stream.text, stream.tokens, stream.counts) == ("ab", None, [])


def test_a_chat_s_reasoning_is_text():
    delta = {"delta": {"reasoning": "hm ", "content": "yes"}, "finish_reason": "stop"}
    assert put_together([(0.1, event(choices=[delta]))], 0.0, 0.1).text == "hm yes"


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (WHOLE[:2], "ended before its last event"),
        ([(0.1, WHOLE[0][1][:-5])], "broke off"),
        ([(0.1, event(error="busy"))], "the server said 'busy'"),
    ],
)
def test_what_is_no_whole_stream_is_refused(pieces, message):
    with pytest.raises(ValueError, match=message):
        put_together(pieces, 0.0, 1.0)
