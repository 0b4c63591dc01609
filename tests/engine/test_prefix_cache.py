"""Prompts that begin alike are read once; no bit of any text changes."""

import asyncio
import itertools
import random

import numpy as np
import pytest

from specjax import LLM, SamplingParams
from specjax.core.cache import RING_ROOM
from specjax.core.types import Ring
from specjax.drafters.ngram import ngram
from specjax.engine.plan import plan_serving
from specjax.engine.prefix_cache import LEAST, MOST_WRITTEN, PrefixCache, common
from specjax.engine.rows import IDLE_REQUEST, Request, layout
from specjax.engine.scheduler import Scheduler
from specjax.engine.service import Service
from specjax.engine.warm import new_row, pieces

LENGTH = 256
RNG = random.Random(0)
HEADER = [RNG.randrange(3, 250) for _ in range(120)]
METHODS = {
    "plain": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3},
    "suffix": {"method": "suffix", "num_speculative_tokens": 3},
    "draft_model": {"num_speculative_tokens": 3},
}


def load(pair, method, slots):
    """Load the tiny model with a method."""
    config = METHODS[method]
    if method == "draft_model":
        config = {**config, "model": pair.draft}
    return LLM(pair.target, speculative_config=config, max_model_len=LENGTH, max_num_seqs=slots)


def finish(stream):
    """Return a stream's completion."""

    async def drain():
        async for _ in stream:
            pass

    asyncio.run(drain())
    return stream.completion()


def turns(count):
    """Return prompts of a chat whose every turn begins with all that was said before."""
    grown = list(HEADER)
    for _ in range(count):
        yield tuple(grown)
        grown += [RNG.randrange(3, 250) for _ in range(9)]


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_every_bit_is_that_of_a_prompt_read_anew(pair, method, slots):
    llm = load(pair, method, slots)
    prompts = [*turns(4), (*HEADER[:100], 7, 8, 9), tuple(HEADER), tuple(HEADER[::-1])]
    ask = [
        SamplingParams(temperature=heat, seed=i, max_tokens=12, logprobs=3, ignore_eos=True)
        for i, heat in zip(range(len(prompts)), itertools.cycle((0.0, 0.9)), strict=False)
    ]
    given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    anew = [one.outputs[0] for one in llm.generate(given, ask, use_tqdm=False)]
    service = Service(llm.core, max_waiting=64, prefix_cache_bytes=2**28)
    try:
        for i, (prompt, params, expected) in enumerate(zip(prompts, ask, anew, strict=True)):
            (stream,) = service.submit_ids(prompt, params)
            found = finish(stream)
            assert found.token_ids == expected.token_ids
            assert found.logprobs == expected.logprobs  # bitwise: law 1
            shared = [common(np.array(prompt), np.array(other)) - 1 for other in prompts[:i]]
            most = max(shared, default=0)
            assert stream.num_cached_tokens == (most if most >= LEAST else 0)
        stats = service.stats()
    finally:
        service.close(drain=False)
    assert stats.prefix_cache_queries == sum(map(len, prompts))
    assert stats.prefix_cache_hits > 5 * LEAST


def test_many_at_once_share_what_was_read(pair):
    llm = load(pair, "ngram", 3)
    prompts = list(turns(6)) * 4
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    anew = [one.outputs[0].token_ids for one in llm.generate(given, params, use_tqdm=False)]
    service = Service(llm.core, max_waiting=64, prefix_cache_bytes=2**28)
    try:
        streams = [service.submit_ids(prompt, params)[0] for prompt in prompts]
        assert [finish(stream).token_ids for stream in streams] == anew
        assert service.stats().prefix_cache_hits > 20 * 100
    finally:
        service.close(drain=False)


def test_salts_and_scored_prompts_share_nothing(pair):
    llm = load(pair, "ngram", 1)
    service = Service(llm.core, max_waiting=64, prefix_cache_bytes=2**28)
    few = SamplingParams(temperature=0.0, max_tokens=2)

    def cached(params=few, salt=""):
        (stream,) = service.submit_ids([*HEADER, 5, 6], params, cache_salt=salt)
        finish(stream)
        return stream.num_cached_tokens

    try:
        assert cached() == 0
        assert cached() == len(HEADER) + 1
        assert cached(salt="other") == 0
        assert cached(salt="other") == len(HEADER) + 1
        scored = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=0)
        assert cached(scored) == 0
    finally:
        service.close(drain=False)


def request(tokens, salt=""):
    """Return a request of a prompt."""
    return Request(tuple(tokens), SamplingParams(), 0, 10_000, (), cache_salt=salt)


def row(llm):
    """Return the state of an idle row."""
    plan = llm.core.plan_serving(None)
    loop = llm.core.new_loop(plan, Scheduler(plan.sizes), lambda _: None)
    return new_row(loop.programs, plan.capacity)


def test_the_least_recently_used_leaves_first(pair):
    state = row(load(pair, "ngram", 1))
    size = sum(leaf.nbytes for layer in state.cache.layers for leaf in layer)
    kept = PrefixCache(2 * size)
    first, second, third = ([number, *range(100)] for number in (1, 2, 3))

    def known(prompt):
        found = kept.find(request([*prompt, 9]))
        return found is not None and found.length == len(prompt) - 1

    for prompt in (first, second):
        kept.add(request(prompt), state, donated=True)
    assert known(first)
    kept.add(request(third), state, donated=True)
    assert [known(first), known(second), known(third)] == [True, False, True]
    longer = [*first, *range(50)]
    kept.add(request(longer), state, donated=True)  # in place of its beginning
    assert [known(third), known(longer)] == [True, True]
    kept.add(request(first), state, donated=True)  # known already
    assert known(third)


def test_what_is_too_short_or_too_large_is_not_kept(pair):
    state = row(load(pair, "ngram", 1))
    none, small = PrefixCache(1), PrefixCache(2**30)
    none.add(request(range(100)), state, donated=False)
    assert none.find(request(range(101))) is None
    small.add(request(range(LEAST)), state, donated=False)
    assert small.find(request(range(LEAST + 9))) is None


def test_of_a_ring_only_the_last_positions_are_reused(pair):
    state = row(load(pair, "ngram", 1))
    rings = tuple(Ring(*layer) for layer in state.cache.layers)
    state = state._replace(cache=state.cache._replace(layers=rings))
    kept, prompt = PrefixCache(2**30), list(range(2000))
    least = len(prompt) + MOST_WRITTEN - RING_ROOM
    kept.add(request(prompt), state, donated=True)
    for shared in (least + 1, 1500):
        found = kept.find(request([*prompt[:shared], 9, 9]))
        assert found is not None
        assert found.length == shared - 1
    assert kept.find(request([*prompt[:least], 9, 9])) is None
    kept.add(request(prompt[:500]), state, donated=True)  # which the longer one cannot serve
    assert kept.find(request([*prompt[:500], 9, 9])) is not None


def parrot(target, num_speculative_tokens):
    """Return a drafter, as the factory of a package would."""
    return ngram(num_speculative_tokens, 3, 1)


def test_a_drafter_of_ones_own_is_not_trusted_with_it(pair):
    llm = LLM(
        pair.target,
        speculative_config={
            "method": "custom_class",
            "model": f"{__name__}:parrot",
            "num_speculative_tokens": 2,
        },
    )
    assert llm.core.new_prefix_cache(2**20) is None


@pytest.mark.parametrize("length", [256, 512, 2048])
def test_prompts_with_a_known_beginning_need_no_other_programs(length):
    plan = plan_serving(layout([IDLE_REQUEST], 500, 3), length, 4, 8, None)
    known = pieces(plan, False)
    for start in range(LEAST, length, 17):
        for end in range(start + 1, length, 29):
            at = start
            while at < end:
                chunk = plan.next_chunk(end - at, False)
                assert (chunk, plan.window(at + chunk + 1)) in known, (start, end)
                at += chunk
