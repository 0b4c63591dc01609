"""OpenAI's responses and Anthropic's messages are the chats they stand for, whole and streamed."""

import json
import re

import openai
import pytest

from specjax.server.app import create_app

TURNS = [{"role": "user", "content": "import os"}]
INPUT = "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
MESSAGES = {"model": "tiny", "max_tokens": 6, "temperature": 0.0, "messages": TURNS}
EVENT = re.compile(rb"event: (.+)\ndata: (.+)\n\n")


@pytest.fixture
def chat(call):
    """Return the text of a chat."""

    def ask(messages, **more):
        body = {"messages": messages, "temperature": 0.0, "max_tokens": 6, **more}
        (choice,) = call("POST", "/v1/chat/completions", body).json()["choices"]
        return choice["message"]["content"]

    return ask


def events(reply):
    """Return the events of a stream, each under its own name."""
    found = [(name.decode(), json.loads(data)) for name, data in EVENT.findall(reply.body)]
    assert all(name == data["type"] for name, data in found)
    return found


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0) as made:
        yield made


def test_the_sdks_responses_are_chats(client, chat):
    system = [{"role": "system", "content": "Be brief."}]
    asked = {"model": "tiny", "temperature": 0.0, "max_output_tokens": 6}
    answer = client.responses.create(input="import os", instructions="Be brief.", **asked)
    assert answer.output_text == chat(system + TURNS)
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage.output_tokens == 6
    parts = [{"type": "input_text", "text": "import os"}]
    given = client.responses.create(input=[{"role": "user", "content": parts}], **asked)
    assert given.output_text == chat(TURNS)


def test_the_sdk_streams_responses(client, chat):
    asked = {"model": "tiny", "temperature": 0.0, "max_output_tokens": 6, "input": "import os"}
    with client.responses.stream(**asked) as stream:
        seen = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[0].type == "response.created"
    assert seen[-1].type == "response.completed"
    assert "".join(e.delta for e in seen if e.type == "response.output_text.delta") == chat(TURNS)
    assert final.output_text == chat(TURNS)
    assert final.status == "incomplete"


@pytest.mark.parametrize(
    "field",
    ["tools", "previous_response_id", "background", "text", "include", "top_logprobs", "input"],
)
def test_what_responses_do_not_serve_is_refused_by_name(call, field):
    reply = call("POST", "/v1/responses", {"model": "tiny", "input": "x"} | {field: ["y"]})
    assert reply.status == 400
    assert reply.json()["error"]["param"] == field


def test_responses_include_log_probabilities(client):
    included = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    asked = {"model": "tiny", "temperature": 0.0, "max_output_tokens": 6, "input": "import os"}
    answer = client.responses.create(**asked, **included)
    scored = answer.output[0].content[0].logprobs
    assert "".join(one.token for one in scored) == answer.output_text
    assert all(len(one.top_logprobs) == 2 and one.logprob <= 0 for one in scored)
    with client.responses.stream(**asked, **included) as stream:
        deltas = [e for e in stream if e.type == "response.output_text.delta"]
    assert [one.token for e in deltas for one in e.logprobs] == [one.token for one in scored]


def test_a_message_is_a_chat(call, chat):
    reply = call("POST", "/v1/messages", MESSAGES).json()
    assert reply["content"] == [{"type": "text", "text": chat(TURNS)}]
    assert (reply["type"], reply["role"], reply["model"]) == ("message", "assistant", "tiny")
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("max_tokens", None)
    counted = call("POST", "/v1/messages/count_tokens", MESSAGES).json()
    usage = reply["usage"]
    assert sum(usage[name] for name in INPUT) == counted["input_tokens"]
    assert usage["output_tokens"] == 6
    blocks = [{"type": "text", "text": "Be brief."}]
    told = call("POST", "/v1/messages", {**MESSAGES, "system": blocks}).json()
    assert told["content"][0]["text"] == chat([{"role": "system", "content": "Be brief."}, *TURNS])


def test_a_message_counts_what_was_read_before_and_what_is_kept(call):
    turns = [{"role": "user", "content": "a b c d e f g h i j k l m n " * 3}]
    (first, again) = (
        call("POST", "/v1/messages", {**MESSAGES, "messages": turns}).json()["usage"]
        for _ in range(2)
    )
    whole = sum(first[name] for name in INPUT)
    assert [first[name] for name in INPUT] == [0, 0, whole]
    assert [again[name] for name in INPUT] == [1, whole - 1, 0]
    stream = call("POST", "/v1/messages", {**MESSAGES, "messages": turns, "stream": True})
    last = events(stream)[-2][1]["usage"]
    assert [last[name] for name in INPUT] == [1, whole - 1, 0]


def test_a_message_has_the_form_that_is_asked_for(call):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    form = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    asked = {**MESSAGES, **form, "max_tokens": 90}
    answer = call("POST", "/v1/messages", {**asked, "stop_sequences": None}).json()
    if answer["stop_reason"] == "end_turn":
        assert isinstance(json.loads(answer["content"][0]["text"])["a"], bool)
    assert answer["content"][0]["text"].startswith("{")
    wrong = {"output_config": {"format": {"type": "xml", "schema": {}}}}
    assert call("POST", "/v1/messages", {**MESSAGES, **wrong}).status == 400


def test_a_message_that_the_assistant_began_is_continued(call, chat):
    turns = [*TURNS, {"role": "assistant", "content": "import re"}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    reply = call("POST", "/v1/messages", {**MESSAGES, "messages": turns}).json()
    assert reply["content"][0]["text"] == chat(turns, **more)


def test_a_message_ends_at_a_stop_sequence(call, chat):
    text = chat(TURNS)
    body = {**MESSAGES, "stop_sequences": [text[2]]}
    reply = call("POST", "/v1/messages", body).json()
    assert reply["content"][0]["text"] == text[: text.index(text[2])]
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", text[2])


def test_messages_stream_in_anthropics_events(call, chat):
    found = events(call("POST", "/v1/messages", {**MESSAGES, "stream": True}))
    names = [name for name, _ in found if name != "content_block_delta"]
    assert names == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert found[0][1]["message"]["usage"]["output_tokens"] == 0
    pieces = [data["delta"]["text"] for name, data in found if name == "content_block_delta"]
    assert "".join(pieces) == chat(TURNS)
    assert found[-2][1]["usage"]["output_tokens"] == 6


def test_errors_of_messages_are_anthropics(call, deployment):
    def error(status, **changes):
        reply = call("POST", "/v1/messages", {**MESSAGES, **changes})
        assert reply.status == status
        assert reply.json()["type"] == "error"
        return reply.json()["error"]

    assert error(404, model="claude")["type"] == "not_found_error"
    assert error(400, max_tokens=0)["type"] == "invalid_request_error"
    assert "max_tokens" in error(400, max_tokens="x")["message"]
    assert "tools" in error(400, tools=[{"name": "f"}])["message"]
    assert "messages" in error(400, messages=[1] * 300_000)["message"]
    app = create_app(deployment, api_keys=["first"])
    assert call("POST", "/v1/messages", MESSAGES, app=app, x_api_key="first").status == 200
    reply = call("POST", "/v1/messages", MESSAGES, app=app, x_api_key="second")
    assert reply.status == 401
    assert reply.json()["error"]["type"] == "authentication_error"
