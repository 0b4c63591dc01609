"""What is no good request is refused with an error object before any work, never with a 5xx."""

import asyncio
import base64
import json
import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specjax import SamplingParams
from specjax.server.app import create_app
from specjax.server.run import accepted_hosts, run_server
from tests.server.conftest import MAX_MODEL_LEN, QUEUE
from tests.server.schema import JUNK, values

BODY = {"model": "tiny", "prompt": "import os", "max_tokens": 2, "temperature": 0}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
SECRET = "swordfish"  # part of every prompt here: no error may repeat it
NUM_CASES = 2000


@pytest.fixture
def refuse(call, deployment):
    """Ask, and expect an error object; nothing may have reached the engine."""

    def ask(path, body, status=400):
        before = deployment.service.stats()
        reply = call("POST", path, body)
        assert reply.status == status, reply.body
        error = reply.json()["error"]
        assert sorted(error) == ["code", "message", "param", "type"]
        assert error["code"] == status
        assert SECRET not in reply.body.decode()
        after = deployment.service.stats()
        assert after.num_prompt_tokens == before.num_prompt_tokens
        assert sum(after.num_finished.values()) == sum(before.num_finished.values())
        return error

    return ask


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": SECRET * 200}, "maximum context length is 128 tokens"),
        ({"prompt": [5] * MAX_MODEL_LEN}, "you requested 128 in the prompt and 2 to come"),
        ({"max_tokens": MAX_MODEL_LEN}, "you requested"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_tokens": 10**30}, "max_tokens: Input should be less than"),
        ({"prompt": [5, 260]}, "prompt token id 260 is out of vocabulary"),
        ({"prompt": [5, -1]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "the decoder prompt cannot be empty"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"text": SECRET}}, "prompt"),
        ({"prompt": ["x", 5]}, "prompt"),
        ({"prompt": ["x"] * 1025}, "prompt"),
        ({"prompt": "\ud800" + SECRET}, "prompt"),
        ({"n": QUEUE + 1, "temperature": 1}, f"more than the {QUEUE} samples that may wait"),
        ({"n": 0}, "n must be at least 1"),
        ({"n": 2}, "n must be 1 when using greedy sampling"),
        ({"n": True}, "n: Input should be a valid integer"),
        ({"n": 10**400}, "n must be at least 1 and at most"),
        ({"n": "2"}, "n: Input should be a valid integer"),
        ({"stop": list("abcde")}, "at most 4 items"),
        ({"stop": [""]}, "stop cannot contain an empty string"),
        ({"stop": ["\udfff"]}, "a lone surrogate at 0"),
        ({"bad_words": [""]}, "bad_words cannot contain an empty string"),
        ({"logprobs": 21}, "greater than max allowed: 20"),
        ({"logprobs": -1}, "greater than max allowed: 20"),
        ({"prompt_logprobs": 1, "stream": True}, "do not stream"),
        ({"temperature": float("nan")}, "temperature: Input should be a finite number"),
        ({"temperature": float("inf")}, "temperature: Input should be a finite number"),
        ({"temperature": 1e300}, "temperature must be at most"),
        ({"temperature": -1}, "temperature must be non-negative"),
        ({"temperature": "hot"}, "temperature: Input should be a valid number"),
        ({"top_p": 0}, "top_p must be in (0, 1]"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k: Input should be a valid integer"),
        ({"min_tokens": 3}, "min_tokens must be less than or equal to max_tokens=2"),
        ({"seed": 2**63}, "(less_than_equal)"),
        ({"seed": -(2**63) - 1}, "(greater_than_equal)"),
        ({"logit_bias": {"260": 1}}, "out-of-vocab token id 260"),
        ({"logit_bias": {"one": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1e300}}, "logit_bias[5] must be within"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"stop_token_ids": [2**31]}, "stop_token_ids"),
        ({"stream_options": {"include_usage": True}}, "stream_options needs stream=true"),
        ({"suffix": SECRET}, "suffix is not supported here"),
        ({"best_of": 2}, "best_of is not supported here"),
        ({"response_format": {"type": "xml"}}, "response_format.type: Input should be"),
        ({"use_beam_search": True, "n": 11}, "1 to 10 beams"),
        ({"use_beam_search": True, "top_k": 5}, "top_k cannot be combined with use_beam_search"),
        ({"length_penalty": 2.0}, "length_penalty needs use_beam_search"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_values_are_named(refuse, changes, words):
    assert words in refuse("/v1/completions", {**BODY, **changes})["message"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": 5, "content": SECRET}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0: the user message has no content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": SECRET * 200}]}, "maximum context length"),
        ({"top_logprobs": 3}, "logprobs must be set to true"),
        ({"logprobs": True, "top_logprobs": 21}, "greater than max allowed: 20"),
        ({"min_tokens": 200, "max_tokens": None}, "200 to come"),
        ({"chat_template": "{{ messages }}"}, "chat_template is not supported here"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "may not hold 'chat_template'"),
        ({"tools": [{"type": "function"}]}, "tools.0.function: Field required"),
        ({"max_completion_tokens": 200}, "maximum context length"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_chats_are_named(refuse, changes, words):
    assert words in refuse("/v1/chat/completions", {**CHAT, **changes})["message"]


UNIONS = {
    "/v1/completions": (BODY, ("prompt", "stop", "response_format", "stream_options")),
    "/v1/chat/completions": (CHAT, ("messages", "stop", "tools", "tool_choice")),
}


@pytest.mark.parametrize("path", UNIONS)
def test_no_message_shows_how_fields_are_checked(refuse, path):
    body, names = UNIONS[path]
    for name in names:
        message = refuse(path, {**body, name: [{"a": [None]}]})["message"]
        assert "[" not in message, message
        assert "function-" not in message, message


def test_what_asks_for_nothing_unusual_is_taken(call):
    idle = {
        "best_of": 1,
        "response_format": {"type": "text"},
        "tools": [],
        "user": "me",
        "suffix": "",
    }
    assert call("POST", "/v1/completions", {**BODY, **idle, "metadata": {"a": 1}}).status == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_an_unknown_model_does_not_exist(refuse, path):
    asked = {**BODY, **CHAT} if path != "/tokenize" else {"prompt": "x"}
    error = refuse(path, {**asked, "model": "gpt\ud800"}, 400)
    assert error["param"] == "model"
    error = refuse(path, {**asked, "model": "gpt-4"}, 404)
    assert error["message"] == "The model 'gpt-4' does not exist."
    assert error["type"] == "NotFoundError"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"prompt": NaN}', b"[" * 100_000),
        b'{"prompt": "x", "n": ' + b"9" * 5000 + b"}",
        b'{"prompt": "\\ud800"}',
    ],
    ids=lambda body: repr(body[:20]),
)
def test_what_is_no_json_object_is_malformed(refuse, body):
    refuse("/v1/completions", body)


def test_other_addresses_and_methods(call):
    assert call("GET", "/v1/nothing").json()["error"]["type"] == "NotFoundError"
    assert call("GET", "/v1/completions").status == 405
    for path in ("/docs", "/redoc", "/../../etc/passwd", "/static"):
        assert call("GET", path).status == 404
    reply = call("POST", "/v1/completions/", BODY, host="elsewhere")
    assert (reply.status, reply.header("location")) == (404, None)


def test_a_full_queue_says_try_again(call, deployment):
    many = {**BODY, "n": QUEUE, "temperature": 1, "max_tokens": 100, "ignore_eos": True}
    ids = deployment.service.core.tokenizer.encode("import os")
    params = SamplingParams(n=QUEUE, max_tokens=100, ignore_eos=True)
    streams = deployment.service.submit({"prompt_token_ids": ids}, params)
    try:
        reply = call("POST", "/v1/completions", many)
    finally:
        for stream in streams:
            stream.abort()
    assert reply.status == 503
    assert reply.header("retry-after") == "1"
    assert reply.json()["error"]["type"] == "ServiceUnavailableError"


def test_keys_are_needed_where_there_are_any(deployment, call):
    app = create_app(deployment, api_keys=["first", "sécond"])

    def status(key=None, method="POST", path="/v1/completions"):
        headers = {} if key is None else {"authorization": key}
        return call(method, path, BODY, app=app, **headers).status

    assert status("Bearer first") == 200
    assert status("bearer sécond") == 200
    for wrong in (
        None,
        "",
        "first",
        "Bearer",
        "Bearer ",
        "Bearer firs",
        "Bearer first ",
        "Basic first",
    ):
        assert status(wrong) == 401
    assert status(None, "GET", "/v1/models") == 401
    assert status(None, "POST", "/tokenize") == 401
    assert status(None, "GET", "/openapi.json") == 401
    assert [status(None, "GET", path) for path in ("/", "/health", "/version", "/metrics")] == [
        200
    ] * 4


def test_metrics_and_page_need_the_key_where_it_is_asked_for(deployment, call):
    app = create_app(deployment, api_keys=["first"], protect_metrics=True)

    def ask(path, key=None):
        headers = {} if key is None else {"authorization": key}
        return call("GET", path, app=app, **headers)

    password = base64.b64encode(b"anybody:first").decode()
    for path in ("/", "/metrics"):
        refused = ask(path)
        assert refused.status == 401
        assert refused.header("www-authenticate") == 'Basic realm="specjax"'
        assert ask(path, "Bearer first").status == ask(path, f"Basic {password}").status == 200
        for wrong in ("Bearer second", "Basic first", "Basic Zmlyc3Q=", "Basic !"):
            assert ask(path, wrong).status == 401
    assert ask("/v1/models", f"Basic {password}").status == 401
    assert ask("/health").status == 200
    with pytest.raises(ValueError, match="--protect-metrics needs --api-key"):
        run_server("bundled", {}, protect_metrics=True)


def test_an_empty_key_is_no_key(deployment):
    for keys in ([""], ["first", " "]):
        with pytest.raises(ValueError, match="an API key is empty"):
            run_server("bundled", {}, api_keys=keys)
    with pytest.raises(ValueError, match="--host is empty"):
        run_server("bundled", {}, host="")


LOCAL = ("localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:8000", "10.0.0.7", "a.localhost")


def test_a_name_that_resolves_to_this_machine_is_not_this_server(deployment, call):
    app = create_app(deployment, hosts=accepted_hosts("127.0.0.1", None, ["box.example"]))
    for name in (*LOCAL, "box.example", "Box.example:8000"):
        assert call("GET", "/health", app=app, host=name).status == 200, name
    for name in ("evil.example", "evil.example:8000", "box.example.evil", "127.0.0.1.evil", ""):
        reply = call("POST", "/v1/completions", BODY, app=app, host=name)
        assert reply.status == 403, name
    assert accepted_hosts("0.0.0.0", None, ()) is None


MANY = 300_000
FLOODS = {
    "messages": ("/v1/chat/completions", {"messages": [1] * MANY}),
    "parts": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [1] * MANY}]}),
    "stops": ("/v1/completions", {"prompt": "x", "stop_token_ids": ["a"] * MANY}),
    "allowed": ("/v1/completions", {"prompt": "x", "allowed_token_ids": ["a"] * MANY}),
    "biases": ("/v1/completions", {"prompt": "x", "logit_bias": {f"a{i}": 1 for i in range(MANY)}}),
    "prompts": ("/v1/completions", {"prompt": [{}] * MANY}),
    "ids": ("/v1/completions", {"prompt": [["a"] * MANY]}),
    "tokenize": ("/tokenize", {"messages": [{}] * MANY}),
    "detokenize": ("/detokenize", {"tokens": ["a"] * MANY}),
    "words": ("/v1/completions", {"prompt": "x", "bad_words": ["a" * 2000] * 128}),
    "model": ("/v1/completions", {"prompt": "x", "model": "m" * MANY}),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_large_body_of_errors_is_refused_at_once(call, name):
    path, body = FLOODS[name]
    body = json.dumps(body).encode()  # which is the client's time
    start = time.thread_time()  # other threads may compile
    reply = call("POST", path, body)
    assert reply.status == (404 if name == "model" else 400)
    assert len(reply.body) < 2000
    assert time.thread_time() - start < 2  # 1 to 15 s when every error was built


def test_only_json_of_a_reasonable_size_is_read(deployment, call):
    app = create_app(deployment, most_bytes=1000)
    big = {**BODY, "user": "x" * 1000}
    assert call("POST", "/v1/completions", big, app=app).status == 413
    assert call("POST", "/v1/completions", big, app=app, content_length="99999").status == 413
    assert call("POST", "/v1/completions", BODY, app=app).status == 200
    assert call("POST", "/health", BODY, content_type="text/plain").status == 405
    both = {"content_length": "9", "transfer_encoding": "chunked"}
    assert call("POST", "/v1/completions", BODY, app=app, **both).status == 400
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert call("POST", "/v1/completions", BODY, app=app, content_type=kind).status == 415


def test_a_body_that_does_not_arrive_is_given_up(application, runner, monkeypatch):
    monkeypatch.setattr("specjax.server.guard.MOST_SECONDS", 0.05)
    statuses = []

    async def dribble():
        parts = [{"type": "http.request", "body": b"{", "more_body": True}]

        async def receive():
            return parts.pop() if parts else await asyncio.sleep(3600)

        async def send(message):
            statuses.append(message.get("status"))

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/tokenize", "headers": headers}
        await application({**scope, "query_string": b"", "root_path": ""}, receive, send)

    runner.run(dribble())
    assert statuses[0] == 408


@pytest.fixture(scope="module")
def bodies(call):
    """Return a strategy of (path, body): what the OpenAPI schema allows, and damage to it."""
    document = call("GET", "/openapi.json").json()
    small = {"max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2}
    small |= {"stream": False, "use_beam_search": False}
    choices = []
    for path, methods in document["paths"].items():
        if "requestBody" in methods.get("post", ()):
            content = methods["post"]["requestBody"]["content"]["application/json"]
            choices.append(st.tuples(st.just(path), values(content["schema"], document)))
    damage = st.dictionaries(st.sampled_from(sorted(fields(document))), JUNK, max_size=2)
    likely = st.sampled_from([small, {**small, "model": "tiny"}, {**small, "model": None}])
    return st.tuples(st.one_of(choices), damage, likely)


def fields(document) -> set[str]:
    """Return the names of all fields of all requests."""
    return {
        name
        for one in document["components"]["schemas"].values()
        for name in one.get("properties", ())
    }


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_no_request_at_all_makes_the_server_fail(bodies, call):
    seen = {}

    @settings(
        max_examples=NUM_CASES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(bodies)
    def check(case):
        (path, body), damage, likely = case
        content = json.dumps({**body, **likely, **damage} if isinstance(body, dict) else body)
        reply = call("POST", path, content.encode())
        seen[reply.status] = seen.get(reply.status, 0) + 1
        assert reply.status == 200 or 400 <= reply.status < 500, (content, reply.body)
        if reply.status != 200:
            text = reply.body.decode()
            assert set(reply.json()) - {"type"} == {"error"}, content
            assert "Traceback" not in text
            assert os.getcwd() not in text

    check()
    assert sum(seen.values()) >= NUM_CASES
    assert seen[200] > NUM_CASES / 50, seen
    assert seen[400] > NUM_CASES / 10, seen
