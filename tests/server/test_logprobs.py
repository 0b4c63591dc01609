"""Log probabilities of the whole vocabulary (-1), where the server allows them, as vLLM does."""

import math

import pytest

from specjax import LLM
from specjax.engine.service import Service
from specjax.server.app import create_app
from specjax.server.deployment import Deployment
from tests.server.conftest import CONFIG

IDS = [7, 8, 9, 7, 8, 9, 7, 8]
BODY = {"prompt": IDS, "max_tokens": 6, "temperature": 0, "return_tokens_as_token_ids": True}
TURNS = [{"role": "user", "content": "import os"}]


@pytest.fixture(scope="module")
def whole(pair, call):
    """Return a function that asks a server with ``--max-logprobs -1``, and expects it to work."""
    llm = LLM(
        pair.target, speculative_config=CONFIG, max_model_len=64, max_num_seqs=1, max_logprobs=-1
    )
    service = Service(llm.core, max_waiting=8)
    service.warm_up()
    app = create_app(Deployment(service=service, names=("tiny",), max_queued=8, max_logprobs=-1))

    def ask(path, body):
        reply = call("POST", path, body, app=app)
        assert reply.status == 200, reply.body
        return reply.events() if body.get("stream") else reply.json()

    yield ask
    service.close(drain=False)


@pytest.fixture(scope="module")
def vocab_size(deployment):
    return deployment.core.engine.target.vocab_size


def is_distribution(values) -> bool:
    """Return whether log probabilities sum to one."""
    return sum(map(math.exp, values)) == pytest.approx(1.0, abs=1e-4)


def test_every_token_of_the_vocabulary_is_scored(whole, call, vocab_size):
    (choice,) = whole("/v1/completions", {**BODY, "logprobs": -1})["choices"]
    (few,) = call("POST", "/v1/completions", {**BODY, "logprobs": 5}).json()["choices"]
    assert choice["text"] == few["text"]
    found = choice["logprobs"]
    assert found["token_logprobs"] == pytest.approx(few["logprobs"]["token_logprobs"], abs=1e-5)
    tops = found["top_logprobs"], few["logprobs"]["top_logprobs"]
    for entry, likeliest in zip(*tops, strict=True):
        assert len(entry) == vocab_size
        assert is_distribution(entry.values())
        assert likeliest == pytest.approx({name: entry[name] for name in likeliest}, abs=1e-5)
    chunks = whole("/v1/completions", {**BODY, "logprobs": -1, "stream": True})
    streamed = [top for one in chunks for top in one["choices"][0]["logprobs"]["top_logprobs"]]
    assert streamed == found["top_logprobs"]


def test_so_is_every_token_of_a_prompt(whole, vocab_size):
    (choice,) = whole("/v1/completions", {**BODY, "prompt_logprobs": -1})["choices"]
    first, *rest = choice["prompt_logprobs"]
    assert (first, len(rest)) == (None, len(IDS) - 1)
    for entry in rest:
        assert len(entry) == vocab_size
        assert is_distribution(one["logprob"] for one in entry.values())


def test_chats_score_it_too(whole, vocab_size):
    body = {"messages": TURNS, "max_tokens": 2, "temperature": 0}
    body |= {"logprobs": "true", "top_logprobs": -1, "prompt_logprobs": -1}
    answer = whole("/v1/chat/completions", body)
    for entry in answer["choices"][0]["logprobs"]["content"]:
        tops = [one["logprob"] for one in entry["top_logprobs"]]
        assert len(tops) == vocab_size
        assert tops == sorted(tops, reverse=True)
        assert entry["logprob"] == tops[0]
    assert all(len(entry) == vocab_size for entry in answer["prompt_logprobs"][1:])


def test_a_server_that_does_not_allow_it_says_so(call, vocab_size):
    for path, body in (
        ("/v1/completions", {**BODY, "logprobs": -1}),
        ("/v1/completions", {**BODY, "prompt_logprobs": -1}),
        ("/v1/chat/completions", {"messages": TURNS, "logprobs": True, "top_logprobs": -1}),
    ):
        reply = call("POST", path, body)
        assert reply.status == 400
        message = reply.json()["error"]["message"]
        assert f"logprobs of {vocab_size}, which is greater than max allowed: 20" in message
