"""Fields of vLLM's that shape prompts and responses do what they say; the table of them is true."""

import json
import re
from pathlib import Path

import pytest

from specjax.server.app import create_app
from specjax.server.compatibility import PAGE, REQUESTS, kind_of, page
from specjax.server.deployment import Deployment
from tests.server.conftest import MAX_MODEL_LEN

IDS = [7, 8, 9, 7, 8, 9, 7, 8]
TURNS = [{"role": "user", "content": "import os"}, {"role": "assistant", "content": "import re"}]
VLLM = json.loads((Path(__file__).parent / "vllm_fields.json").read_text(encoding="utf-8"))
ROOT = Path(__file__).parents[2]


@pytest.fixture
def complete(call):
    """Complete, and expect it to work."""

    def ask(path="/v1/completions", **body):
        reply = call("POST", path, {"temperature": 0, "max_tokens": 3, **body})
        assert reply.status == 200, reply.body
        return reply.events() if body.get("stream") else reply.json()

    return ask


@pytest.fixture
def chat(complete):
    """Chat, and expect it to work."""

    def ask(messages=TURNS, **body):
        return complete("/v1/chat/completions", messages=messages, **body)

    return ask


@pytest.fixture
def tokenize(call):
    def ask(**body):
        return call("POST", "/tokenize", body).json()["tokens"]

    return ask


@pytest.mark.parametrize("side", ["left", "right", None])
def test_a_prompt_is_truncated_on_the_side_that_is_asked_for(complete, side):
    asked = {"return_token_ids": True, "truncate_prompt_tokens": 3, "truncation_side": side}
    (choice,) = complete(prompt=IDS, **asked)["choices"]
    assert choice["prompt_token_ids"] == (IDS[:3] if side == "right" else IDS[-3:])


def test_a_prompt_is_truncated_to_what_fits(complete, call):
    asked = {"return_token_ids": True, "truncate_prompt_tokens": -1, "max_tokens": 8}
    (choice,) = complete(prompt=IDS * 100, **asked)["choices"]
    assert choice["prompt_token_ids"] == (IDS * 100)[-(MAX_MODEL_LEN - 8) :]
    (choice,) = complete(prompt="x" * 3000, **asked)["choices"]
    assert len(choice["prompt_token_ids"]) == MAX_MODEL_LEN - 8
    wrong = {"prompt": IDS, "truncate_prompt_tokens": 0}
    assert b"cannot be empty" in call("POST", "/v1/completions", wrong).body


def test_a_final_message_is_continued_and_echoed(chat, deployment):
    tokenizer = deployment.core.tokenizer
    plain = tokenizer.apply_chat_template(TURNS, False)
    asked = {"continue_final_message": True, "add_generation_prompt": False}
    answer = chat(**asked, return_token_ids=True, return_prompt_text=True)
    assert answer["prompt_text"].endswith("import re")
    assert plain.startswith(answer["prompt_text"])
    assert answer["prompt_token_ids"] == tokenizer.encode(answer["prompt_text"], False)
    said = answer["choices"][0]["message"]
    assert said["role"] == "assistant"
    echoed = chat(**asked, echo=True)["choices"][0]["message"]
    assert echoed["content"] == "import re" + said["content"]
    chunks = chat(**asked, echo=True, stream=True)
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == echoed["content"]
    asked = chat(TURNS[:1], echo=True)["choices"][0]["message"]  # another role's: no echo
    assert asked["content"] == chat(TURNS[:1])["choices"][0]["message"]["content"]


def test_named_tokens_are_scored_in_place_of_the_likeliest(complete, chat, call):
    asked = {"logprob_token_ids": [5, 9], "allowed_token_ids": [7], "max_tokens": 1}
    asked |= {"return_tokens_as_token_ids": True}
    expected = {"token_id:5", "token_id:7", "token_id:9"}
    for stream in (False, True):
        answer = complete(prompt=IDS, logprobs=3, stream=stream, **asked)
        (choice,) = (answer[0] if stream else answer)["choices"]
        assert set(choice["logprobs"]["top_logprobs"][0]) == expected
        answer = chat(logprobs=True, stream=stream, **asked)
        (choice,) = (answer[0] if stream else answer)["choices"]
        (entry,) = choice["logprobs"]["content"]
        assert {one["token"] for one in entry["top_logprobs"]} == expected
        assert entry["token"] == "token_id:7"
    for body in ({}, {"use_beam_search": True, "logprobs": 1}, {"logprob_token_ids": [1] * 129}):
        reply = call("POST", "/v1/completions", {"prompt": IDS, **asked, **body})
        assert reply.status == 400, body


def test_a_prompt_that_another_server_has_tokenized_is_taken_as_it_is(chat, call):
    given = {"kv_transfer_params": {"prompt_token_ids": IDS}, "return_token_ids": True}
    assert chat(**given)["prompt_token_ids"] == IDS
    given["kv_transfer_params"]["remote_host"] = "x"
    reply = call("POST", "/v1/chat/completions", {"messages": TURNS, **given})
    assert (reply.status, reply.json()["error"]["param"]) == (400, "kv_transfer_params")


def test_the_servers_defaults_hold_where_a_request_says_nothing(deployment, call):
    names = {"service": deployment.service, "names": deployment.names, "max_queued": 8}
    more = {"force_include_usage": True, "tokens_as_token_ids": True, "max_logprobs": 2}
    app = create_app(Deployment(**names, **more))
    body = {"prompt": IDS, "max_tokens": 2, "logprobs": 1}
    *chunks, last = call("POST", "/v1/completions", {**body, "stream": True}, app=app).events()
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 2)
    assert all(chunk["usage"]["prompt_tokens"] == len(IDS) for chunk in chunks)
    assert chunks[0]["choices"][0]["logprobs"]["tokens"][0].startswith("token_id:")
    asked = {**body, "return_tokens_as_token_ids": False}
    (choice,) = call("POST", "/v1/completions", asked, app=app).json()["choices"]
    assert not choice["logprobs"]["tokens"][0].startswith("token_id:")
    reply = call("POST", "/v1/completions", {**body, "logprobs": 3}, app=app)
    assert b"greater than max allowed: 2" in reply.body


def test_a_chat_that_is_continued_and_followed_is_refused(call):
    body = {"messages": TURNS, "continue_final_message": True}
    reply = call("POST", "/v1/chat/completions", body)
    assert reply.status == 400
    assert reply.json()["error"]["param"] == "continue_final_message"


def test_the_template_gets_documents_effort_and_tools(deployment, call, runner):
    class Asked(type(deployment)):
        """A deployment whose template prints what it gets."""

    printing = "{{ documents|tojson }}|{{ reasoning_effort }}|{{ tools|tojson }}|{{ flag }}"
    names = {"service": deployment.service, "names": deployment.names, "max_queued": 8}
    app = create_app(Asked(**names, chat_template=printing))
    body = {"messages": TURNS, "documents": [{"text": "a"}], "reasoning_effort": "low"}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
    body |= {"chat_template_kwargs": {"flag": 1}, "tools": [tool]}
    tokens = call("POST", "/tokenize", body, app=app).json()["tokens"]
    text = deployment.core.tokenizer.decode(tokens, skip_special_tokens=False)
    assert text == f'[{{"text": "a"}}]|low|{json.dumps([tool])}|1'
    asked = {k: v for k, v in body.items() if k != "tools"} | {"return_prompt_text": True}
    reply = call("POST", "/v1/chat/completions", {**asked, "max_tokens": 1}, app=app)
    assert reply.json()["prompt_text"] == '[{"text": "a"}]|low|null|1'


def test_tokenize_continues_the_final_message(tokenize, deployment):
    asked = {"messages": TURNS, "add_generation_prompt": False, "continue_final_message": True}
    text = deployment.core.tokenizer.decode(tokenize(**asked), skip_special_tokens=False)
    assert text.endswith("import re")


@pytest.mark.parametrize("role", ["critic", "user"])
def test_roles_are_the_templates_business(chat, tokenize, role):
    turns = [{"role": role, "content": "import os"}]
    ids = chat(turns, return_token_ids=True)["prompt_token_ids"]
    assert ids == tokenize(messages=turns)


def test_log_probabilities_of_a_chats_prompt(chat):
    answer = chat(prompt_logprobs=1, return_token_ids=True)
    scored = answer["prompt_logprobs"]
    assert scored[0] is None
    for token, entry in zip(answer["prompt_token_ids"][1:], scored[1:], strict=True):
        assert str(token) in entry
    assert chat()["prompt_logprobs"] is None


def test_tokens_are_named_by_their_ids(complete, chat):
    asked = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    (choice,) = complete(prompt=IDS, logprobs=2, **asked)["choices"]
    names = [f"token_id:{token}" for token in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names
    for name, top in zip(names, choice["logprobs"]["top_logprobs"], strict=True):
        assert name in top
        assert len(top) in (2, 3)
    (choice,) = chat(logprobs=True, top_logprobs=1, **asked)["choices"]
    names = [f"token_id:{token}" for token in choice["token_ids"]]
    content = choice["logprobs"]["content"]
    assert [one["token"] for one in content] == names
    assert all(one["top_logprobs"][0]["token"].startswith("token_id:") for one in content)


def test_an_echo_shows_what_its_tokens_say_whole_and_streamed(complete):
    for prompt in (IDS, [0, *IDS], "import os\n"):
        asked = {"prompt": prompt, "echo": True, "logprobs": 0, "return_token_ids": True}
        (choice,) = complete(**asked)["choices"]
        text, found = choice["text"], choice["logprobs"]
        for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
            assert text.startswith(token, offset) or "\ufffd" in token
        chunks = [chunk["choices"][0] for chunk in complete(**asked, stream=True)]
        assert "".join(chunk["text"] for chunk in chunks) == text
        streamed = [one for chunk in chunks for one in chunk["logprobs"]["tokens"]]
        assert streamed == found["tokens"]
        offsets = [one for chunk in chunks for one in chunk["logprobs"]["text_offset"]]
        assert offsets == found["text_offset"]
    (alone,) = complete(prompt=IDS, echo=True, max_tokens=0, stream=True)
    (whole,) = complete(prompt=IDS, echo=True, max_tokens=0)["choices"]
    assert alone["choices"][0]["text"] == whole["text"]


def test_tokens_that_were_read_before_are_counted(complete, call):
    prompt = [(7 * i) % 200 + 3 for i in range(90)]

    def cached(**more):
        """Return how many tokens were read before, and how many are kept."""
        return tuple(complete(prompt=prompt, **more)["usage"]["prompt_tokens_details"].values())

    def hits():
        metrics = call("GET", "/metrics").body.decode()
        assert 'enable_prefix_caching="True"' in metrics
        (found,) = re.findall(r"^vllm:prefix_cache_hits_total\{.*\} (.+)$", metrics, re.MULTILINE)
        return float(found)

    before = hits()  # the tests of other files may have asked the same server
    assert cached() == (0, 90)
    assert cached() == (89, 0)
    assert cached(cache_salt="mine") == (0, 90)
    assert cached(cache_salt="mine") == (89, 0)
    assert hits() == before + 178


def test_priorities_are_taken_where_they_are_enabled(deployment, call):
    body = {"prompt": IDS, "max_tokens": 1, "priority": -3}
    reply = call("POST", "/v1/completions", body)
    assert reply.status == 400
    assert reply.json()["error"]["param"] == "priority"
    assert call("POST", "/v1/completions", {**body, "priority": 0}).status == 200
    names = {"service": deployment.service, "names": deployment.names, "max_queued": 8}
    app = create_app(Deployment(**names, by_priority=True))
    assert call("POST", "/v1/completions", body, app=app).status == 200


def test_usage_in_chunks_needs_usage_at_all(complete):
    options = {"continuous_usage_stats": True}
    chunks = complete(prompt=IDS, stream=True, stream_options=options)
    assert not any("usage" in chunk for chunk in chunks)


def test_responses_have_their_keys_even_if_null(complete, chat):
    (choice,) = complete(prompt=IDS)["choices"]
    assert {choice[name] for name in ("prompt_logprobs", "token_ids", "prompt_token_ids")} == {None}
    answer = chat()
    assert answer["prompt_token_ids"] is None
    assert answer["choices"][0]["token_ids"] is None
    first, *rest = chat(stream=True, return_token_ids=True)
    assert first["prompt_token_ids"]
    assert not any("prompt_token_ids" in chunk for chunk in rest)


def test_a_request_has_the_name_its_client_gave_it(deployment, call, complete):
    assert complete(prompt=IDS, request_id="abc-1")["id"] == "cmpl-abc-1"
    body = {"prompt": IDS, "max_tokens": 1}
    reply = call("POST", "/v1/completions", body, x_request_id="mine")
    assert reply.json()["id"] == "cmpl-mine"
    reply = call("POST", "/v1/completions", body, x_request_id="<script>")
    assert "script" not in reply.json()["id"]
    app = create_app(deployment, enable_request_id_headers=True)
    assert call("GET", "/health", app=app, x_request_id="mine").header("x-request-id") == "mine"
    assert len(call("GET", "/health", app=app).header("x-request-id")) == 32
    assert call("GET", "/health").header("x-request-id") is None


def test_the_addresses_of_platforms(deployment, call):
    body = {"prompt": IDS, "max_tokens": 2, "temperature": 0}
    whole = call("POST", "/v1/completions", body).json()["choices"]
    assert call("POST", "/invocations", body).json()["choices"] == whole
    turns = {"messages": TURNS, "max_tokens": 2}
    assert call("POST", "/invocations", turns).json()["object"] == "chat.completion"
    assert call("POST", "/invocations", {**body, "n": "x"}).json()["error"]["param"] == "n"
    assert call("POST", "/ping", b"", content_type="").status == 200
    assert call("GET", "/ping").status == 200
    assert call("GET", "/load").json() == {"server_load": 0}
    info = call("GET", "/server_info").json()["vllm_config"]
    assert info["max_model_len"] == MAX_MODEL_LEN
    assert info["speculative_config"]["method"] == "ngram"
    assert call("GET", "/tokenizer_info").status == 404
    app = create_app(deployment, enable_tokenizer_info_endpoint=True)
    found = call("GET", "/tokenizer_info", app=app).json()
    assert found["model_max_length"] == MAX_MODEL_LEN
    assert found["tokenizer_class"]


@pytest.mark.parametrize("request_type", sorted(VLLM))
def test_every_field_of_vllm_is_honoured_ignored_or_refused(request_type):
    for name in VLLM[request_type]:
        assert kind_of(REQUESTS[request_type], name), name


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_fields_are_refused_by_name(call, path):
    kinds = {
        "/v1/completions": "CompletionRequest",
        "/v1/chat/completions": "ChatCompletionRequest",
    }
    body = {"prompt": IDS} if path == "/v1/completions" else {"messages": TURNS}
    for name in VLLM[kinds[path]]:
        if kind_of(REQUESTS[kinds[path]], name) == "refused":
            error = call("POST", path, {**body, name: "x"}).json()["error"]
            assert error["param"] == name
            assert name in error["message"]


def test_the_table_is_what_the_code_says():
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(VLLM)
