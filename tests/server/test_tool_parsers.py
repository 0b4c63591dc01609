"""Tool calls are found in every format, at whatever places their text is cut into pieces."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax.server.tool_parsers import (
    FORMATS,
    REQUIRED,
    Arguments,
    Begin,
    Content,
    NamedCall,
    ToolParser,
)

DEEPSEEK = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
CALL = "<｜tool▁call▁begin｜>"
ODD = '{"a": "}{ \\" \\\\", "b": {"c": [1, {}]}, "d": "<tool_call>"}'
TEXTS = {  # format -> texts in it, of the calls f(ODD) and g()
    "hermes": [
        f'<tool_call>\n{{"name": "f", "arguments": {ODD}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        f'<tool_call>{{"arguments": {ODD}, "name": "f"}}</tool_call>'
        '<tool_call>{"name": "g"}</tool_call>',
    ],
    "llama3_json": [
        f'{{"name": "f", "parameters": {ODD}}}; {{"name": "g", "parameters": {{}}}}',
        f'<|python_tag|>{{"name": "f", "parameters": {ODD}}};{{"name": "g", "parameters": {{}}}}',
        f'\n{{"type": "function", "name": "f", "parameters": {ODD}}}{{"name": "g"}}',
    ],
    "mistral": [
        f'[TOOL_CALLS] [{{"name": "f", "arguments": {ODD}}}, {{"name": "g", "arguments": {{}}}}]',
        f"[TOOL_CALLS]f{ODD}[TOOL_CALLS]g{{}}",
        f"[TOOL_CALLS]f[CALL_ID]Ab1[ARGS]{ODD}[TOOL_CALLS]g[ARGS]{{}}",
    ],
    "deepseek_v3": [
        f"{DEEPSEEK[0]}{CALL}function<｜tool▁sep｜>f\n```json\n{ODD}\n```{DEEPSEEK[1]}\n"
        f"{CALL}function<｜tool▁sep｜>g\n```json\n{{}}\n```{DEEPSEEK[1]}{DEEPSEEK[2]}",
    ],
    "deepseek_v31": [
        f"{DEEPSEEK[0]}{CALL}f<｜tool▁sep｜>{ODD}{DEEPSEEK[1]}"
        f"{CALL}g<｜tool▁sep｜>{{}}{DEEPSEEK[1]}{DEEPSEEK[2]}",
    ],
}
CASES = [(name, text) for name, texts in TEXTS.items() for text in texts]
NO_CALLS = ["", "plain", "{", '{"a": 1}', '{"a": {"b": 1}} and so on', "x <tool_", "[TOOL_CALLS]"]
NO_CALLS += ["<tool_call>never mind</tool_call>", '<tool_call>{"name": "f", "argu', "}{}{", "\n \n"]


def parse(parser, pieces):
    """Return the events of a text, neighbours joined."""
    found = []
    events = [event for piece in pieces for event in parser.push(piece)] + parser.flush()
    for event in events:
        kind = type(event)
        if found and kind is type(found[-1]) and kind is not Begin:
            found[-1] = kind(found[-1].text + event.text)
        else:
            found.append(event)
    return found


def pieces_of(text, cuts):
    """Cut a text at given places."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


@pytest.mark.parametrize(("name", "text"), CASES)
@pytest.mark.parametrize("before", ["", "I will ask <f>.\n"])
def test_calls_are_found(name, text, before):
    bare = FORMATS[name].bare and text.lstrip()[0] == "{"
    before = "" if bare else before
    events = parse(ToolParser(FORMATS[name]), [before + text])
    said = [event.text for event in events if isinstance(event, Content)]
    assert "".join(said) == before
    calls = [event for event in events if not isinstance(event, Content)]
    assert [event.name for event in calls[::2]] == ["f", "g"]
    assert [json.loads(event.text) for event in calls[1::2]] == [json.loads(ODD), {}]


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(CASES), st.lists(st.integers(0, 400), max_size=12))
def test_pieces_change_nothing(case, cuts):
    name, text = case
    whole = parse(ToolParser(FORMATS[name]), [text])
    assert parse(ToolParser(FORMATS[name]), pieces_of(text, cuts)) == whole


def test_arguments_come_while_they_are_written():
    for name, text in CASES:
        if "arguments" in text and text.index("arguments") < text.index("name"):
            continue
        at = text.index(ODD) + len(ODD) // 2
        events = ToolParser(FORMATS[name]).push(text[:at])
        assert events[0] == Begin("f")
        assert events[-1] == Arguments(ODD[: len(ODD) // 2])


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.one_of(st.sampled_from(NO_CALLS), st.text(alphabet='<>{}[]"\\:, tol_ca', max_size=60)),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_what_is_no_call_stays_text(name, text, cuts):
    events = parse(ToolParser(FORMATS[name]), pieces_of(text, cuts))
    assert "".join(event.text for event in events) == text
    assert all(isinstance(event, Content) for event in events)


def test_a_call_that_is_cut_keeps_what_there_is():
    text = '<tool_call>{"name": "f", "arguments": {"a": "un'
    events = parse(ToolParser(FORMATS["hermes"]), [text])
    assert events == [Begin("f"), Arguments('{"a": "un')]


def test_what_is_cut_after_a_call_is_dropped():
    hermes = '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n<tool_call>{"na'
    assert parse(ToolParser(FORMATS["hermes"]), [hermes]) == [Begin("f"), Arguments("{}")]
    forced = '[{"name": "f", "parameters": {}}, {"name":'
    assert parse(ToolParser(REQUIRED), list(forced)) == [Begin("f"), Arguments("{}")]
    assert parse(ToolParser(REQUIRED), ['[{"na']) == []


def test_forced_calls():
    text = f'[ {{"name": "f", "parameters": {ODD}}},\n{{"name": "g", "parameters": {{}}}} ]'
    for pieces in ([text], list(text)):
        events = parse(ToolParser(REQUIRED), pieces)
        assert events == [Begin("f"), Arguments(ODD), Begin("g"), Arguments("{}")]
        assert parse(NamedCall("f"), pieces) == [Begin("f"), Arguments(text)]
    assert parse(NamedCall("f"), []) == []
