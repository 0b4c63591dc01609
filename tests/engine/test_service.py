"""The service: many callers, one loop; nothing compiled on the way, nobody held up."""

import asyncio
import time

import pytest

from specjax import LLM, SamplingParams
from specjax.engine.service import Failed, Full, Service
from tests.compiles import num_compiled

NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
    "num_speculative_tokens_per_batch_size": [[1, 1, 3], [2, 2, 0]],
}
EVERYTHING = {
    "temperature": 0.9,
    "top_p": 0.9,
    "top_k": 30,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.2,
    "logit_bias": {5: 1.0},
    "bad_words": ["x", "the end"],
    "stop": ["\x00"],
    "stop_token_ids": list(range(200, 220)),
    "min_tokens": 2,
    "logprobs": 3,
    "prompt_logprobs": 2,
}


@pytest.fixture(scope="module")
def service(pair):
    llm = LLM(pair.target, speculative_config=NGRAM, max_num_seqs=2, max_model_len=100)
    service = Service(llm.core, max_waiting=6)
    seen = []
    service.warm_up(lambda done, total: seen.append((done, total)))
    assert seen == [(i + 1, len(seen)) for i in range(len(seen))]
    yield service
    service.close(drain=True)
    with pytest.raises(Full, match="closing"):
        service.submit("x", SamplingParams())


async def complete(service: Service, prompt, params: SamplingParams):
    (stream,) = service.submit(prompt, params)
    deltas = [delta async for delta in stream]
    return stream, deltas


def complete_all(service, *asked):
    async def everything():
        return await asyncio.gather(*(complete(service, *one) for one in asked))

    return asyncio.run(everything())


def greedy(max_tokens: int, **options) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **options)


def wait_until(stream) -> None:
    """Stand still, as the whole of the reader's loop does then, until a sample has finished."""
    deadline = time.monotonic() + 60
    while stream.times.finished is None and time.monotonic() < deadline:
        time.sleep(0.01)


def test_nothing_is_compiled_after_the_warm_up(service):
    """Prompts of all lengths, everything a request can ask for, one row and two."""
    before = num_compiled()
    assert before > 0
    for length in (1, 15, 16, 17, 40, 60, 80):
        plain, asked = greedy(12), SamplingParams(**EVERYTHING, seed=length, max_tokens=9)
        prompt = {"prompt_token_ids": [9] * length}
        complete_all(service, (prompt, plain))
        complete_all(service, (prompt, plain), (prompt, asked), (prompt, plain))
    assert num_compiled() == before


def test_no_stream_waits_for_what_another_thread_compiles(pair):
    """A service begins with few programs of the largest shapes, and takes others as they come."""
    llm = LLM(pair.target, speculative_config=NGRAM, max_num_seqs=2, max_model_len=60)
    service = Service(llm.core, max_waiting=6)
    service.warm_up(wait=False)
    first, before = num_compiled(), num_compiled("specjax engine")
    prompt = {"prompt_token_ids": [9] * 30}
    asked = (prompt, greedy(12)), (prompt, SamplingParams(**EVERYTHING, seed=1, max_tokens=9))
    texts = []

    def answer():
        found = complete_all(service, asked[0]) + complete_all(service, *asked)
        texts.append([(stream.completion().text, stream.prompt_logprobs()) for stream, _ in found])

    answer()
    assert service.compiling
    assert service.stats().slots == 2
    while service.compiling:
        answer()
    assert num_compiled() > first + 10
    answer()
    for seed in range(3):  # alone for long: the batch shrinks
        random = SamplingParams(temperature=1.0, seed=seed, max_tokens=28, ignore_eos=True)
        complete_all(service, (prompt, random))
    assert service.stats().slots == 1
    answer()
    assert num_compiled("specjax engine") == before
    assert all(each == texts[0] for each in texts)
    service.close(drain=True)


def test_a_service_that_still_compiles_can_be_closed(pair):
    llm = LLM(pair.target, speculative_config=NGRAM, max_num_seqs=2, max_model_len=70)
    service = Service(llm.core, max_waiting=6)
    service.warm_up(wait=False)
    before = num_compiled()
    service.close(drain=True)
    assert num_compiled() < before + 10
    assert not service.compiling


def test_deltas_add_up_to_the_completion(service):
    before = service.stats()
    asked = ("def f(x):", greedy(20, logprobs=1)), ("a b a b a b", greedy(60))
    for stream, deltas in complete_all(service, *asked):
        done = stream.completion()
        assert "".join(one.text for one in deltas) == done.text
        assert [i for one in deltas for i in one.token_ids] == done.token_ids
        assert [one.finish_reason for one in deltas] == [None] * (len(deltas) - 1) + ["length"]
        if stream.params.logprobs is not None:
            assert [entry for one in deltas for entry in one.logprobs] == done.logprobs
        times = stream.times
        assert times.arrived <= times.started <= times.first_token <= times.finished
        assert done.spec_decode_metrics is not None
    now = service.stats()
    assert now.num_generation_tokens - before.num_generation_tokens == 80
    assert now.num_finished["length"] - before.num_finished["length"] == 2
    assert (now.running, now.waiting) == (0, 0)
    assert now.counters.num_draft_tokens > before.counters.num_draft_tokens  # when one was left


def test_the_text_is_that_of_generate_and_of_plain_decoding(service, pair):
    plain = LLM(pair.target, max_model_len=100)
    prompt, params = "import os", SamplingParams(temperature=0.8, seed=3, max_tokens=25)
    (expected,) = plain.generate(prompt, params)
    ((stream, _),) = complete_all(service, (prompt, params))
    assert stream.completion().text == expected.outputs[0].text


def test_samples_of_one_request_have_tickets_of_their_own(service):
    async def everything():
        streams = service.submit("x = ", SamplingParams(n=3, seed=1, max_tokens=5))
        assert [one.index for one in streams] == [0, 1, 2]
        return [[delta async for delta in one] for one in streams]

    assert all(deltas[-1].finish_reason for deltas in asyncio.run(everything()))


def test_an_abort_frees_the_slot(service):
    """Both slots are taken for long; who waits starts as soon as one of them is aborted."""

    async def everything():
        first, second = (service.submit("abc", greedy(90))[0] for _ in range(2))
        async for _ in second:
            break
        (third,) = service.submit("abc", greedy(3))
        first.abort()
        third_done = [delta async for delta in third]
        rest = [delta async for delta in first]
        return rest[-1].finish_reason, third_done[-1].finish_reason, second

    aborted, done, second = asyncio.run(everything())
    assert (aborted, done) == ("abort", "length")
    second.abort()
    second.abort()  # a second one does nothing
    wait_until(second)


def test_a_queue_that_is_full_refuses_at_once(service):
    """2 slots and 6 places: of nine samples none is taken, of eight all are."""

    async def everything():
        with pytest.raises(Full, match="at most 8 may: no room for 9"):
            service.submit("abc", SamplingParams(n=9, max_tokens=60))
        streams = service.submit("abc", SamplingParams(n=8, max_tokens=60))
        for stream in streams:
            stream.abort()
        return [[delta async for delta in one][-1].finish_reason for one in streams]

    assert set(asyncio.run(everything())) <= {"abort", "length", "stop"}


def test_a_slow_reader_gets_merged_deltas_and_holds_up_nobody(service):
    async def everything():
        (slow,) = service.submit("slow", greedy(60))
        wait_until(slow)
        return [delta async for delta in slow]

    (only,) = asyncio.run(everything())
    assert (len(only.token_ids), only.finish_reason) == (60, "length")


def test_a_reader_that_is_gone_is_given_up(service):
    async def begin():
        (stream,) = service.submit("gone", greedy(90))
        async for _ in stream:
            return stream

    stream = asyncio.run(begin())  # its loop is closed now
    wait_until(stream)
    assert stream.completion().finish_reason in ("abort", "length")


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "the decoder prompt cannot be empty"),
        ({"prompt_token_ids": [1] * 100}, {}, "no room for one output token"),
        ("x", {"stop_token_ids": list(range(90))}, "stop_token_ids: at most 64"),
        ("x", {"bad_words": [str(i) for i in range(40)]}, "bad_words: at most 16"),
    ],
)
def test_what_cannot_be_served_is_refused_before_any_work(prompt, options, message, service):
    with pytest.raises(ValueError, match=message):
        service.submit(prompt, SamplingParams(**options))


def test_an_engine_that_dies_leaves_nobody_waiting(pair, monkeypatch):
    llm = LLM(pair.target, max_num_seqs=2, max_model_len=100)
    service = Service(llm.core, max_waiting=4)
    monkeypatch.setattr("threading.excepthook", lambda args: None)
    monkeypatch.setattr(service._loop, "step", lambda: 1 / 0)

    async def everything():
        (stream,) = service.submit("x", greedy(5))
        with pytest.raises(Failed, match="the engine has stopped"):
            async for _ in stream:
                pass
        with pytest.raises(Full):
            service.submit("x", greedy(5))

    asyncio.run(everything())
    assert not service.alive
    service.close(drain=True)
