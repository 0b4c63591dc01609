"""Tools in chats and messages: calls that are forced, and calls that the model makes itself."""

import json

import openai
import pytest

from specjax.server.app import create_app
from specjax.server.deployment import Deployment
from specjax.server.responses_api import Responses
from specjax.server.run import check_tool_options

NUMBER = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
SHARED = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/digit"}},
    "required": ["x"],
    "additionalProperties": False,
    "$defs": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
}


def tool(name, schema=NUMBER):
    """Return a tool."""
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("add"), tool("look", SHARED)]
TURNS = [{"role": "user", "content": "import os"}]
ASKED = {"messages": TURNS, "tools": TOOLS, "max_tokens": 100, "temperature": 1.2, "seed": 5}
COMPACT = '{"name": "add", "arguments": {"a": [0-9]{1,2}}}'.replace("{", "\\{").replace("}", "\\}")
COMPACT = COMPACT.replace("\\{1,2\\}", "{1,2}")
WRITES = {  # a form in which any model writes what a trained one does
    "hermes": f"Well\\.\n<tool_call>\n{COMPACT}\n</tool_call>",
    "mistral": f"\\[TOOL_CALLS\\] ?\\[{COMPACT}, {COMPACT}\\]",
}


def application(deployment, parser):
    """Return an application in which the model may call tools in a format."""
    names = {"service": deployment.service, "names": deployment.names, "max_queued": 8}
    return create_app(Deployment(**names, tool_call_parser=parser, enable_auto_tool_choice=True))


@pytest.fixture(scope="module")
def hermes(deployment):
    return application(deployment, "hermes")


@pytest.fixture(scope="module")
def mistral(deployment):
    return application(deployment, "mistral")


@pytest.fixture
def chat(call):
    """Chat, whole and streamed; return the choice, which is the same both ways."""

    def ask(app, **more):
        body = {**ASKED, **more}
        reply = call("POST", "/v1/chat/completions", body, app=app)
        assert reply.status == 200, reply.body
        (choice,) = reply.json()["choices"]
        events = call("POST", "/v1/chat/completions", {**body, "stream": True}, app=app).events()
        found = joined([event["choices"][0] for event in events])
        message = {k: v for k, v in choice["message"].items() if k not in ("role",)}
        assert found == (without_ids(message), choice["finish_reason"])
        return choice

    return ask


def joined(pieces):
    """Return the message that a stream's pieces add up to, and why it ended."""
    content, calls = None, []
    for piece in pieces:
        delta = piece["delta"]
        if "content" in delta:
            content = (content or "") + delta["content"]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(calls)
                calls.append({"type": "function", "function": dict(call["function"])})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return {"content": content, "tool_calls": calls}, pieces[-1]["finish_reason"]


def without_ids(message):
    """Return a message whose calls have no ids, which are new for every answer."""
    calls = [{k: v for k, v in call.items() if k != "id"} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def test_required_calls_fit_their_schemas(chat, hermes):
    names = set()
    for seed in range(4):
        choice = chat(hermes, tool_choice="required", seed=seed)
        assert choice["finish_reason"] in ("tool_calls", "length")
        if choice["finish_reason"] == "length":
            continue
        assert choice["message"]["content"] is None
        for call in choice["message"]["tool_calls"]:
            given = json.loads(call["function"]["arguments"])
            assert set(given) == {{"add": "a", "look": "x"}[call["function"]["name"]]}
            names.add(call["function"]["name"])
    assert names


def test_one_call_where_they_are_not_to_be_parallel(chat, hermes):
    for seed in range(4):
        choice = chat(hermes, tool_choice="required", parallel_tool_calls=False, seed=seed)
        assert len(choice["message"]["tool_calls"]) == 1


def test_a_named_function_gets_its_arguments(chat, hermes):
    named = {"type": "function", "function": {"name": "look"}}
    choice = chat(hermes, tool_choice=named)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "look"
    assert 0 <= json.loads(call["function"]["arguments"])["x"] <= 9
    assert choice["finish_reason"] == "stop"


def test_the_model_calls_in_its_own_format(chat, hermes, mistral):
    choice = chat(hermes, structured_outputs={"regex": WRITES["hermes"]})
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Well.\n"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert 0 <= json.loads(call["function"]["arguments"])["a"] <= 99
    forms = {"structured_outputs": {"regex": WRITES["mistral"]}}
    choice = chat(mistral, **forms)
    calls = choice["message"]["tool_calls"]
    assert len({call["id"] for call in calls}) == 2
    assert all(len(call["id"]) == 9 for call in calls)  # what Mistral's templates accept
    assert len(chat(mistral, **forms, parallel_tool_calls=False)["message"]["tool_calls"]) == 1


def test_a_model_that_calls_nothing_says_something(chat, hermes):
    plain = chat(hermes, structured_outputs={"regex": "No tool\\."})
    assert plain["message"] == {"role": "assistant", "content": "No tool.", "tool_calls": []}
    assert plain["finish_reason"] == "stop"


def test_no_choice_no_calls(call, hermes, deployment):
    form = {"structured_outputs": {"regex": WRITES["hermes"]}, "tool_choice": "none"}
    (choice,) = call("POST", "/v1/chat/completions", {**ASKED, **form}).json()["choices"]
    assert "<tool_call>" in choice["message"]["content"]
    assert "tool_calls" not in choice["message"]


def test_the_template_gets_the_tools_and_the_calls_as_objects(deployment, call):
    printing = "{{ tools[0].function.name }}|{{ messages[1].tool_calls[0].function.arguments.a }}|"
    printing += "{{ messages[2].content }}"
    names = {"service": deployment.service, "names": deployment.names, "max_queued": 8}
    app = create_app(Deployment(**names, chat_template=printing))
    called = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 7}'}}
    turns = [*TURNS, {"role": "assistant", "tool_calls": [called]}]
    turns += [{"role": "tool", "tool_call_id": "1", "content": "14"}]
    body = {**ASKED, "messages": turns, "tool_choice": "none", "return_prompt_text": True}
    reply = call("POST", "/v1/chat/completions", {**body, "max_tokens": 1}, app=app)
    assert reply.json()["prompt_text"] == "add|7|14"
    called["function"]["arguments"] = "{"
    reply = call("POST", "/v1/chat/completions", body, app=app)
    assert reply.status == 400
    assert "no JSON" in reply.json()["error"]["message"]


def test_wrong_tools_are_refused_by_name(call, hermes):
    def refused(app=hermes, **body):
        reply = call("POST", "/v1/chat/completions", {**ASKED, **body}, app=app)
        assert reply.status == 400, reply.body
        return reply.json()["error"]

    unasked = call("POST", "/v1/chat/completions", ASKED).json()["error"]
    assert "--enable-auto-tool-choice" in unasked["message"]
    assert refused(tools=None, tool_choice="required")["param"] == "tool_choice"
    named = {"type": "function", "function": {"name": "none"}}
    assert "does not match" in refused(tool_choice=named)["message"]
    assert refused(tools=[tool("a"), tool("a")])["param"] == "tools"
    assert "128" in refused(tools=[tool(f"f{i}") for i in range(200)])["message"]
    assert refused(use_beam_search=True, temperature=None, seed=None)["param"] == "tools"
    other = {**SHARED, "$defs": {"digit": {"type": "string"}}}
    both = {"tools": [tool("a", SHARED), tool("b", other)], "tool_choice": "required"}
    assert "'digit'" in refused(**both)["message"]
    strange = [tool("a", {"type": "strange"})]
    assert "cannot be compiled" in refused(tools=strange, tool_choice="required")["message"]


def test_options_are_checked_before_anything_is_loaded():
    with pytest.raises(ValueError, match="requires --tool-call-parser"):
        check_tool_options(None, True)
    with pytest.raises(ValueError, match=r"'x' is not one of hermes, llama3_json"):
        check_tool_options("x", False)
    check_tool_options("hermes", True)


def test_the_sdk_gets_calls(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0) as client:
        named = {"type": "function", "function": {"name": "add"}}
        asked = {"model": "tiny", "messages": TURNS, "tools": TOOLS, "tool_choice": named}
        answer = client.chat.completions.create(**asked, seed=2)
        (call,) = answer.choices[0].message.tool_calls
        assert 0 <= json.loads(call.function.arguments)["a"] <= 99
        with client.chat.completions.stream(**asked, seed=2) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        streamed = final.choices[0].message.tool_calls[0].function
        assert (streamed.name, streamed.arguments) == ("add", call.function.arguments)


FUNCTION = {"type": "function", "name": "add", "parameters": NUMBER}


def test_responses_call_functions(url):
    """The SDK's calls, whole and streamed, are those of the same chat; results go back in."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0) as client:
        named = {"type": "function", "name": "add"}
        asked = {"model": "tiny", "tools": [FUNCTION], "tool_choice": named, "temperature": 0.0}
        answer = client.responses.create(input="import os", **asked)
        (called,) = answer.output
        assert (called.type, called.name, called.status) == ("function_call", "add", "completed")
        assert 0 <= json.loads(called.arguments)["a"] <= 99
        assert answer.tools[0].name == answer.tool_choice.name == "add"
        with client.responses.stream(input="import os", **asked) as stream:
            seen = list(stream)
            final = stream.get_final_response()
        kinds = [e.type for e in seen if not e.type.endswith(".delta")]
        assert kinds == [
            *("response.created", "response.in_progress", "response.output_item.added"),
            *("response.function_call_arguments.done", "response.output_item.done"),
            "response.completed",
        ]
        assert [e.sequence_number for e in seen] == list(range(len(seen)))
        assert final.output[0].arguments == called.arguments
        result = {"type": "function_call_output", "call_id": called.call_id, "output": "8"}
        turns = [{"role": "user", "content": "import os"}, called, result]
        again = client.responses.create(input=turns, model="tiny", max_output_tokens=3)
        assert again.output[0].type == "message"
        every = {**asked, "tool_choice": "required", "parallel_tool_calls": False}
        (called,) = client.responses.create(input="import os", **every).output
        assert called.name == "add"


def test_calls_and_results_of_responses_reach_the_template():
    calls = [
        {"type": "function_call", "call_id": str(i), "name": "add", "arguments": "{}"}
        for i in range(2)
    ]
    results = [{"type": "function_call_output", "call_id": "0", "output": "8"}]
    body = Responses.model_validate({"input": [TURNS[0], *calls, *results], "tools": [FUNCTION]})
    asked, called, result = body.to_chat()["messages"]
    assert asked == TURNS[0]
    assert [call["id"] for call in called["tool_calls"]] == ["0", "1"]
    assert result == {"role": "tool", "tool_call_id": "0", "content": "8"}


def test_a_call_that_is_cut_is_no_call(call):
    body = {"model": "tiny", "input": "import os", "tools": [FUNCTION], "max_output_tokens": 2}
    body |= {"tool_choice": {"type": "function", "name": "add"}, "temperature": 0.0}
    answer = call("POST", "/v1/responses", body).json()
    assert answer["status"] == "incomplete"
    assert [item["type"] for item in answer["output"]] == ["message"]
    reply = call("POST", "/v1/responses", {**body, "stream": True}).body
    last = json.loads(reply.rpartition(b"data: ")[2])
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_responses_stream_text_and_calls_of_the_models_own(call, hermes):
    form = {"structured_outputs": {"regex": WRITES["hermes"]}}
    body = {"model": "tiny", "input": "import os", "tools": [FUNCTION], "temperature": 0.0, **form}
    whole = call("POST", "/v1/responses", body, app=hermes).json()["output"]
    assert [item["type"] for item in whole] == ["message", "function_call"]
    assert whole[0]["content"][0]["text"] == "Well.\n"
    reply = call("POST", "/v1/responses", {**body, "stream": True}, app=hermes)
    last = json.loads(reply.body.rpartition(b"data: ")[2])["response"]["output"]
    assert [(item["type"], item.get("arguments")) for item in last] == [
        (item["type"], item.get("arguments")) for item in whole
    ]


def anthropic(**more):
    """Return the body of a message with tools."""
    tools = [{"name": "add", "description": "d", "input_schema": NUMBER}]
    body = {"model": "tiny", "max_tokens": 90, "messages": TURNS, "tools": tools}
    return {**body, **more}


def test_messages_call_tools(call, hermes):
    for choice in (
        {"type": "any", "disable_parallel_tool_use": True},
        {"type": "tool", "name": "add"},
    ):
        reply = call("POST", "/v1/messages", anthropic(tool_choice=choice), app=hermes)
        assert reply.status == 200, reply.body
        answer = reply.json()
        (block,) = answer["content"]
        assert (block["type"], block["name"]) == ("tool_use", "add")
        assert 0 <= block["input"]["a"] <= 99
        assert answer["stop_reason"] == "tool_use"


def test_messages_stream_their_calls(call, hermes):
    body = anthropic(tool_choice={"type": "tool", "name": "add"}, temperature=0.0)
    whole = call("POST", "/v1/messages", body, app=hermes).json()
    reply = call("POST", "/v1/messages", {**body, "stream": True}, app=hermes)
    events = [
        json.loads(line[6:]) for line in reply.body.split(b"\n") if line.startswith(b"data: ")
    ]
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[1]["content_block"]["name"] == "add"
    pieces = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == whole["content"][0]["input"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_calls_and_results_of_messages_reach_the_template(deployment, call):
    printing = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}"
    printing += "{{ c.function.name }}({{ c.function.arguments.a }}){% endfor %};{% endfor %}"
    names = {"service": deployment.service, "names": deployment.names, "max_queued": 8}
    app = create_app(Deployment(**names, chat_template=printing))
    used = {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 7}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "8"}]}
    turns = [
        *TURNS,
        {"role": "assistant", "content": [{"type": "text", "text": "so"}, used]},
        {"role": "user", "content": [result, {"type": "text", "text": "and?"}]},
    ]
    body = anthropic(messages=turns, tools=None)
    counted = call("POST", "/v1/messages/count_tokens", body, app=app).json()["input_tokens"]
    text = "user:import os;assistant:soadd(7);tool:8;user:and?;"
    assert counted == len(deployment.core.tokenizer.encode(text, add_special_tokens=False))
