"""Structured output over HTTP: answers have the form that was asked for."""

import json

import openai
import pydantic
import pytest

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
COMPACT = {"disable_any_whitespace": True}
TURNS = [{"role": "user", "content": "import os"}]
HOT = {"temperature": 1.5, "max_tokens": 90, "seed": 3}


class Person(pydantic.BaseModel, extra="forbid"):
    """What the schema says."""

    name: str = pydantic.Field(max_length=4)
    age: int = pydantic.Field(le=9)


@pytest.fixture
def ask(call):
    """Send a request, expect it to work, and return its text."""

    def post(path="/v1/completions", **body):
        subject = {"messages": TURNS} if "chat" in path else {"prompt": "import os"}
        reply = call("POST", path, {**subject, **HOT, **body})
        assert reply.status == 200, reply.body
        if body.get("stream"):
            choices = [event["choices"][0] for event in reply.events()]
            return "".join(c["text"] if "text" in c else c["delta"]["content"] for c in choices)
        (choice,) = reply.json()["choices"]
        assert choice["finish_reason"] == "stop"
        return choice["text"] if "text" in choice else choice["message"]["content"]

    return post


@pytest.fixture
def refused(call):
    """Send a request and return why it is refused."""

    def post(path="/v1/completions", **body):
        subject = {"messages": TURNS} if "chat" in path else {"prompt": "import os"}
        reply = call("POST", path, {**subject, **body})
        assert reply.status == 400, reply.body
        return reply.json()["error"]

    return post


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_holds(ask, path, stream):
    for seed in range(3):
        asked = {"response_format": FORMAT, "structured_outputs": COMPACT, "seed": seed}
        Person.model_validate_json(ask(path, **asked, stream=stream))


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ({"choice": ["yes", "no"]}, ("yes", "no")),
        ({"regex": "a[bc]d"}, ("abd", "acd")),
        ({"grammar": 'root ::= "x" ("y" | "z")'}, ("xy", "xz")),
        ({"json": {"enum": [1, True]}}, ("1", "true")),
    ],
)
def test_vllms_forms_hold(ask, form, texts):
    for path in ("/v1/completions", "/v1/chat/completions"):
        assert ask(path, structured_outputs=form) in texts
        assert ask(path, structured_outputs=form, response_format={"type": "text"}) in texts


def test_any_object(ask, deployment):
    closing = deployment.core.tokenizer.encode("}", add_special_tokens=False)
    biased = {"logit_bias": {str(token): 50.0 for token in closing}}  # else it may have no end
    text = ask(response_format={"type": "json_object"}, structured_outputs=COMPACT, **biased)
    assert isinstance(json.loads(text), dict)


def test_the_sdk_parses(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0) as client:
        asked = {"model": "tiny", "messages": TURNS, "seed": 1, "max_tokens": 90}
        more = {"extra_body": {"structured_outputs": COMPACT}, "temperature": 1.5}
        answer = client.chat.completions.parse(**asked, **more, response_format=Person)
        assert isinstance(answer.choices[0].message.parsed, Person)
        told = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}
        response = client.responses.create(
            model="tiny", input="import os", max_output_tokens=100, text=told
        )
        assert response.output_text.lstrip()[:1] == "{"
        assert response.text.format.name == "person"


def test_what_is_wrong_is_said_before_anything_runs(refused):
    wrong = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "strange"}}}
    assert "cannot be compiled" in refused(response_format=wrong)["message"]
    assert "response_format" in refused(response_format={"type": "xml"})["message"]
    assert "json_schema" in refused(response_format={"type": "json_schema"})["message"]
    two = refused(response_format=FORMAT, structured_outputs={"regex": "a"})
    assert two["param"] == "structured_outputs"
    assert "takes one of" in two["message"]
    unknown = refused(structured_outputs={"structural_tag": "x"})
    assert "structural_tag" in unknown["message"]
    assert "cannot be compiled" in refused(structured_outputs={"regex": "("})["message"]
    beams = refused(use_beam_search=True, structured_outputs={"regex": "a"})
    assert beams["param"] == "structured_outputs"
    deep = {"json": json.loads('{"a":' * 60 + "1" + "}" * 60)}
    assert refused(structured_outputs={**deep, "regex": "a"})["param"] == "structured_outputs"
