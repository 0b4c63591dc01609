"""What every address answers, held against the offline LLM."""

import itertools
import math
import re
import time

import pytest

from specjax import __version__
from specjax.readers.metrics import fetch, observe, read_metrics
from tests.server.conftest import CONFIG, MAX_MODEL_LEN

WORDS = "import os\nimport sys\nimport re\nimport "
IDS = [7, 8, 9, 7, 8, 9, 7, 8]
NOTHING_CACHED = {"cached_tokens": 0, "created_cache_tokens": 0}
BODY = {"model": "tiny", "prompt": IDS, "max_tokens": 24, "temperature": 0}


@pytest.fixture
def complete(call):
    """Complete, and expect it to work."""

    def ask(path="/v1/completions", **changes):
        reply = call("POST", path, {**BODY, **changes} if "completions" in path[:15] else changes)
        assert reply.status == 200, reply.body
        return reply.events() if changes.get("stream") else reply.json()

    return ask


def joined(lists) -> list:
    """Return one list of many."""
    return list(itertools.chain.from_iterable(lists))


def test_a_completion_is_the_offline_one_with_its_metrics(complete, offline):
    (expected,) = offline([IDS], max_tokens=24)
    answer = complete(return_token_ids=True)
    (choice,) = answer["choices"]
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    assert choice["text"] == expected.text
    assert choice["token_ids"] == list(expected.token_ids)
    assert choice["prompt_token_ids"] == IDS
    assert choice["finish_reason"] == expected.finish_reason
    counts = {"prompt_tokens": 8, "completion_tokens": 24, "total_tokens": 32}
    assert answer["usage"] == {**counts, "prompt_tokens_details": NOTHING_CACHED}
    told = answer["metrics"]["speculative_decoding"]
    assert told == {**expected.spec_decode_metrics.to_dict(), "num_spec_tokens": 3}
    assert told["num_accepted_draft_tokens"] > 0
    assert 0 < answer["metrics"]["time_to_first_token_ms"] < 60_000


def test_prompts_come_as_text_lists_and_ids(complete, offline):
    tokens = [list(one.token_ids) for one in offline([WORDS, "def f"], max_tokens=5)]
    several = complete(prompt=[WORDS, "def f"], max_tokens=5, return_token_ids=True)
    assert [choice["token_ids"] for choice in several["choices"]] == tokens
    assert [choice["index"] for choice in several["choices"]] == [0, 1]
    assert several["metrics"] is None
    ids = [choice["prompt_token_ids"] for choice in several["choices"]]
    again = complete(prompt=ids, max_tokens=5, return_token_ids=True)
    assert [choice["token_ids"] for choice in again["choices"]] == tokens


def test_samples_of_one_prompt_differ_and_repeat_by_seed(complete):
    asked = {"n": 3, "temperature": 1.0, "seed": 11, "max_tokens": 12}
    texts = [choice["text"] for choice in complete(**asked)["choices"]]
    assert len(set(texts)) == 3
    assert [choice["text"] for choice in complete(**asked)["choices"]] == texts
    assert complete(**asked)["usage"]["prompt_tokens"] == len(IDS)
    alone = complete(temperature=1.0, seed=12, max_tokens=12)  # sample i has seed + i
    assert alone["choices"][0]["text"] == texts[1]


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_says_what_the_whole_answer_says(complete, n):
    asked = {"n": n, "temperature": 0.9, "seed": 5, "logprobs": 2, "return_token_ids": True}
    whole = complete(**asked)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = complete(**asked, stream=True, stream_options=options)
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    for choice in whole["choices"]:
        mine = [c for c in chunks if c["choices"][0]["index"] == choice["index"]]
        pieces = [chunk["choices"][0] for chunk in mine]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert joined(piece["token_ids"] for piece in pieces) == choice["token_ids"]
        said = {name: joined(p["logprobs"][name] for p in pieces) for name in choice["logprobs"]}
        for name in ("tokens", "text_offset"):
            assert said[name] == choice["logprobs"][name]
        for name in ("token_logprobs", "top_logprobs"):  # the batch may have another size
            for one, other in zip(said[name], choice["logprobs"][name], strict=True):
                assert one == pytest.approx(other, abs=1e-4)
        assert pieces[-1]["finish_reason"] == choice["finish_reason"]
        assert not any(piece["finish_reason"] for piece in pieces[:-1])
        assert mine[-1]["usage"]["completion_tokens"] == len(choice["token_ids"])
    if n == 1:
        assert last["metrics"]["speculative_decoding"] == whole["metrics"]["speculative_decoding"]


def test_log_probabilities_are_those_of_the_prompt_when_it_is_read_again(complete):
    said = complete(logprobs=3, max_tokens=6, return_token_ids=True)["choices"][0]
    for text, top in zip(said["logprobs"]["tokens"], said["logprobs"]["top_logprobs"], strict=True):
        assert text in top
        assert len(top) <= 4  # fewer where tokens read alike
    again = complete(prompt=IDS + said["token_ids"], echo=True, max_tokens=0, logprobs=3)
    read = again["choices"][0]["logprobs"]
    assert again["usage"]["completion_tokens"] == 0
    assert read["token_logprobs"][0] is None
    for mine, theirs in zip(
        said["logprobs"]["token_logprobs"], read["token_logprobs"][len(IDS) :], strict=True
    ):
        assert math.isclose(mine, theirs, abs_tol=1e-4)


def test_an_echo_puts_the_prompt_first_whole_and_streamed(complete):
    plain = complete(prompt=WORDS)["choices"][0]["text"]
    assert complete(prompt=WORDS, echo=True)["choices"][0]["text"] == WORDS + plain
    chunks = complete(prompt=WORDS, echo=True, stream=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == WORDS + plain


def test_a_stop_string_and_a_stop_token_end_the_text(complete):
    tokens = complete(return_token_ids=True)["choices"][0]["token_ids"]
    third = complete(stop_token_ids=[tokens[2]], return_token_ids=True)["choices"][0]
    assert third["finish_reason"] == "stop"
    assert third["stop_reason"] == tokens[2]
    text = complete()["choices"][0]["text"]
    cut = complete(stop=[text[6:8]])["choices"][0]
    assert cut["text"] == text[: text.index(text[6:8])]
    assert cut["stop_reason"] == text[6:8]


def test_a_chat_is_its_template_completed(complete, call, deployment, offline):
    turns = [{"role": "system", "content": "a"}, {"role": "user", "content": "import os\nimport"}]
    tokenizer = deployment.service.core.tokenizer
    ids = tokenizer.encode(tokenizer.apply_chat_template(turns), add_special_tokens=False)
    (expected,) = offline([ids], max_tokens=7)
    turns[1]["content"] = [{"type": "text", "text": turns[1]["content"]}]
    asked = {"messages": turns, "temperature": 0, "max_completion_tokens": 7}
    asked |= {"logprobs": True, "top_logprobs": 2, "top_k": -1, "repetition_penalty": 1.0}
    answer = complete("/v1/chat/completions", **asked)
    (choice,) = answer["choices"]
    assert answer["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": expected.text}
    assert len(choice["logprobs"]["content"]) == 7
    for token in choice["logprobs"]["content"]:
        assert len(token["top_logprobs"]) == 2
        assert bytes(token["bytes"]).decode() == token["token"]
        assert token["logprob"] <= token["top_logprobs"][0]["logprob"] <= 0
    chunks = complete("/v1/chat/completions", **asked, stream=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert not any("role" in delta for delta in deltas[1:])
    assert "".join(delta["content"] for delta in deltas) == expected.text
    tokens = call("POST", "/tokenize", {"messages": turns}).json()["tokens"]
    assert tokens == ids


def test_text_and_tokens_turn_into_each_other(call):
    said = call("POST", "/tokenize", {"prompt": WORDS, "return_token_strs": True}).json()
    assert said["count"] == len(said["tokens"]) == len(said["token_strs"])
    assert said["max_model_len"] == MAX_MODEL_LEN
    assert call("POST", "/detokenize", {"tokens": said["tokens"]}).json() == {"prompt": WORDS}


def test_the_small_addresses(call):
    assert call("GET", "/health").status == 200
    assert call("GET", "/version").json() == {"version": __version__}
    models = call("GET", "/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["tiny", "alias"]
    assert models[0]["max_model_len"] == MAX_MODEL_LEN
    assert b"<title>specjax</title>" in call("GET", "/").body


def test_explain_reads_the_metrics_of_a_live_server(complete, url):
    """Two scrapes over HTTP, an answer between them: its own counts, and a restart is found."""
    before = fetch(url)
    told = complete()["metrics"]["speculative_decoding"]
    until = time.monotonic() + 10
    while (seen := observe([before, fetch(url)])).num_requests != 1:  # counted a moment later
        assert time.monotonic() < until
    assert seen.num_drafts == told["num_spec_steps"]
    assert seen.num_draft_tokens == told["num_draft_tokens"]
    assert seen.num_accepted_tokens == told["num_accepted_draft_tokens"]
    assert seen.generation_tokens == 24
    assert seen.model == "tiny"
    assert seen.running == pytest.approx(1, abs=0.2)
    assert seen.seconds > 0
    with pytest.raises(ValueError, match="the scrapes are in the wrong order"):
        observe([fetch(url), before])
    with pytest.raises(ValueError, match=r"nothing was generated between .*/metrics"):
        read_metrics(url, seconds=0.1)


@pytest.mark.parametrize("most", [0, 1, None])
def test_a_request_limits_its_drafts_over_http_and_0_switches_them_off(complete, most):
    whole, extra = complete(), {} if most is None else {"num_speculative_tokens": most}
    limited = complete(vllm_xargs=extra)
    assert limited["choices"][0]["text"] == whole["choices"][0]["text"]
    told, free = (one["metrics"]["speculative_decoding"] for one in (limited, whole))
    if most is None:
        assert told["num_draft_tokens"] == free["num_draft_tokens"]
    else:
        assert told["num_draft_tokens"] == most * told["num_spec_steps"]
        assert (told["num_draft_tokens"] > 0) == (most > 0)
    assert free["num_draft_tokens"] > free["num_spec_steps"]


def test_metrics_have_vllms_names_and_count(complete, call):
    def read():
        lines = call("GET", "/metrics").body.decode().splitlines()
        return {k: float(v) for k, v in (li.rsplit(" ", 1) for li in lines if li[0] != "#")}

    labels = 'engine="0",model_name="tiny"'
    before = read()
    answer = complete()
    until = time.monotonic() + 10
    success = f'vllm:request_success_total{{engine="0",finished_reason="length",{labels[11:]}}}'
    while (after := read())[success] == before[success]:  # counted a moment after it is told
        assert time.monotonic() < until
    grown = {name: after[name] - before[name] for name in before if "_created" not in name}
    told = answer["metrics"]["speculative_decoding"]
    for name, count in {
        "prompt_tokens_total": len(IDS),
        "generation_tokens_total": 24,
        "spec_decode_num_drafts_total": told["num_spec_steps"],
        "spec_decode_num_draft_tokens_total": told["num_draft_tokens"],
        "spec_decode_num_accepted_tokens_total": told["num_accepted_draft_tokens"],
        "time_to_first_token_seconds_count": 1,
        "request_time_per_output_token_seconds_count": 1,
        "e2e_request_latency_seconds_count": 1,
        "request_generation_tokens_sum": 24,
    }.items():
        assert grown[f"vllm:{name}{{{labels}}}"] == count, name
    for position in range(CONFIG["num_speculative_tokens"]):
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        count = sum(accepted > position for accepted in told["per_step_accepted"])
        assert grown[f'{name}{{{labels},position="{position}"}}'] == count
    assert grown[success] == 1
    assert grown[f"vllm:inter_token_latency_seconds_count{{{labels}}}"] > 0
    for name in ("num_requests_running", "num_requests_waiting"):
        assert after[f"vllm:{name}{{{labels}}}"] == 0
    (cache,) = (name for name in after if name.startswith("vllm:cache_config_info{"))
    said = dict(re.findall(r'(\w+)="([^"]*)"', cache))
    rows = int(said["num_rows"])
    assert float(said["kv_cache_max_concurrency"]) == rows
    assert int(said["kv_cache_size_tokens"]) >= rows * len(IDS)
