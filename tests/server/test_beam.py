"""Beam search finds what a search over the log probabilities of all beams finds."""

import pytest

from tests.server.conftest import MAX_MODEL_LEN

IDS = [7, 8, 9, 7, 8, 9, 7, 8]
BODY = {"prompt": IDS, "use_beam_search": True, "return_token_ids": True, "max_tokens": 3}


@pytest.fixture
def search(call):
    """Return the choices of a beam search."""

    def ask(path="/v1/completions", **changes):
        reply = call("POST", path, {**BODY, **changes})
        assert reply.status == 200, reply.body
        return reply.json()

    return ask


@pytest.fixture
def reference(offline):
    """Return the best continuations, from the offline LLM's log probabilities, step by step."""

    def find(prompt, width, num_tokens):
        beams = [(0.0, prompt)]
        for _ in range(num_tokens):
            found = []
            for score, ids in beams:
                (one,) = offline([ids], max_tokens=1, logprobs=2 * width, ignore_eos=True)
                found += [(score + p.logprob, [*ids, t]) for t, p in one.logprobs[0].items()]
            beams = sorted(found, reverse=True)[:width]
        return [ids[len(prompt) :] for _, ids in beams]

    return find


def test_the_best_beams_are_found_in_order(search, reference):
    answer = search(n=3, ignore_eos=True)
    assert [choice["token_ids"] for choice in answer["choices"]] == reference(IDS, 3, 3)
    assert answer["usage"]["completion_tokens"] == 9
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}


def test_every_prompt_of_a_batch_has_its_beams(search):
    (first, second) = search(n=2)["choices"]
    choices = search(n=2, prompt=[IDS, IDS])["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in choices]
    assert texts == [first["text"], second["text"]] * 2
    assert first["text"] != second["text"]


def test_one_beam_is_greedy(search, call):
    (choice,) = search(n=1, ignore_eos=True)["choices"]
    body = {"prompt": IDS, "temperature": 0, "ignore_eos": True, "max_tokens": 3}
    (greedy,) = call("POST", "/v1/completions", body).json()["choices"]
    assert choice["text"] == greedy["text"]


def test_a_chat_is_searched_as_its_prompt_is(search):
    turns = [{"role": "user", "content": "import os"}]
    answer = search("/v1/chat/completions", messages=turns, n=2, ignore_eos=True)
    again = search(prompt=answer["prompt_token_ids"], n=2, ignore_eos=True)
    found = [choice["token_ids"] for choice in answer["choices"]]
    assert found == [choice["token_ids"] for choice in again["choices"]]
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_a_search_that_does_not_fit_is_refused(call, deployment):
    reply = call("POST", "/v1/completions", {**BODY, "prompt": [7] * (MAX_MODEL_LEN - 2)})
    assert reply.status == 400
    assert deployment.service.stats().running == 0
