"""Law 9 under churn: whoever comes and goes beside a row, the row says what it says alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.types import Engine
from specjax.drafters.none import observe_only
from specjax.engine.driver import XLA
from specjax.engine.loop import Loop
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.plan import Plan, ProgramTier
from specjax.engine.request_state import RequestState
from specjax.engine.rows import Request, layout
from specjax.engine.warm import warm
from specjax.models.modules import pick_one
from specjax.verify.walk import walk
from tests.compiles import num_compiled
from tests.laws import harness as h

MOST = 60  # tokens of a prompt, and of an output


def some(number: int, seed: int) -> list[Request]:
    """Draw requests, greedy and hot by turns."""
    rng, asked = np.random.default_rng(seed), []
    for i in range(number):
        prompt = tuple(rng.integers(0, h.VOCAB, rng.integers(1, MOST)).tolist())
        params = SamplingParams(temperature=0.8 if i % 2 else 0.0, logprobs=20, max_tokens=MOST)
        limit = len(prompt) + int(rng.integers(1, MOST))
        asked.append(Request(prompt, params, int(rng.integers(2**63)), limit, (h.VOCAB - 1,)))
    return asked


@functools.cache
def plan(sizes: tuple[int, ...], windows: tuple[int, ...], chunks: tuple[int, ...] = (16,)) -> Plan:
    tier = ProgramTier(layout(some(2, 0), h.VOCAB, h.K), h.VOCAB)
    return Plan(
        capacity=h.CAPACITY,
        sizes=sizes,
        prefill_tier=tier,
        tiers=(tier,),
        num_prompt_logprobs=None,
        chunks=chunks,
        groups=((2, 16), (4, 16)),
        scored_chunks=(16,),
        windows=windows,
        history=1,
        patience=2,
        min_tokens_to_shrink=0,
    )


def start(drafter, sizes, windows, target=h.TARGET, **options) -> Loop:
    engine = Engine(target, drafter, walk, 0)
    return Loop(engine, h.weights(drafter), plan(sizes, windows), alternate=True, **options)


def alone(loop: Loop, asked: list[Request]) -> list[RequestState]:
    """Complete one after the other."""
    done = [RequestState(i, request) for i, request in enumerate(asked)]
    for one in done:
        loop.scheduler.put([one])
        while len(loop.scheduler):
            loop.step()
    return done


def churned(loop: Loop, asked: list[Request], seed: int) -> list[RequestState]:
    """Complete all, arriving at random times; a third of them leaves at a random time."""
    rng = np.random.default_rng(seed)
    done = [RequestState(i, request) for i, request in enumerate(asked)]
    arrivals = np.cumsum(rng.integers(0, 12, len(done)))
    leaves = {one: arrivals[i] + rng.integers(1, 40) for i, one in enumerate(done) if i % 3 == 2}
    step, widths = 0, set()
    while any(one.finish_reason is None for one in done):
        loop.scheduler.put([one for i, one in enumerate(done) if arrivals[i] == step])
        for one, when in leaves.items():
            if when == step:
                loop.abort(one)
        if len(loop.scheduler):
            loop.step()
        widths.add((loop.scheduler.num_slots, len(loop.scheduler.decoding)))
        step += 1
    assert max(running for _, running in widths) > 2  # they did meet
    assert {size for size, _ in widths} == set(loop.programs.plan.sizes)  # and the batch breathed
    return done


def logprobs(request_state: RequestState) -> np.ndarray:
    """Return [tokens, V]: the law at every emitted position."""
    scored = [token for one in request_state.rounds for token in one.logprobs]
    dense = np.zeros((len(scored), h.VOCAB), np.float32)
    for line, (ids, values, _) in zip(dense, scored, strict=True):
        line[ids[1:]] = values[1:]
    return dense


@pytest.mark.parametrize("name", ["ngram", "draft_model coupled", "eagle"])
def test_in_one_shape_a_row_under_churn_is_the_row_alone(name):
    """1(a): ids and log probabilities are equal bitwise."""
    asked = some(12, seed=1)
    loop = start(h.CHAINS[name], (4,), (h.CAPACITY,))
    expected, done = alone(loop, asked), churned(loop, asked, seed=2)
    assert sum(one.finish_reason == "abort" for one in done) >= 2
    for one, other in zip(done, expected, strict=True):
        if one.finish_reason != "abort":
            assert (one.tokens, one.finish_reason) == (other.tokens, other.finish_reason)
        assert one.tokens == other.tokens[: len(one.tokens)]
        np.testing.assert_array_equal(logprobs(one), logprobs(other)[: len(one.tokens)])


@pytest.mark.parametrize("name", ["draft_model coupled"])
def test_across_shapes_a_row_under_churn_is_the_row_alone(name):
    """Batches of 1, 2 and 4, windows that grow, nothing drafted while 3 or more run: bitwise."""
    drafter, asked = h.CHAINS[name], some(16, seed=3)
    expected = alone(start(drafter, (1,), (h.CAPACITY,)), asked)
    engine = Engine(h.TARGET, drafter, walk, 0)
    schedule = (engine, engine, engine._replace(drafter=observe_only(drafter)))
    loop = start(drafter, (1, 2, 4), (64, h.CAPACITY), schedule=schedule)
    done = churned(loop, asked, seed=4)
    for one, other in zip(done, expected, strict=True):
        assert one.tokens == other.tokens[: len(one.tokens)]
        np.testing.assert_array_equal(logprobs(one), logprobs(other)[: len(one.tokens)])
        assert one.finish_reason in ("abort", other.finish_reason)
    assert sum(len(one.tokens) for one in done) > 200
    drafted = {len(r.drafted) for one in done for r in one.rounds[1:]}
    assert {0, h.K} <= drafted


def test_asking_before_the_last_answer_is_there_changes_no_answer():
    """1(a) again; the answer to one step comes with the next."""
    asked, said, waited = some(8, seed=5), {}, {}
    for ahead in (False, True):
        driver = XLA._replace(asynchronous=ahead)
        loop = start(h.CHAINS["draft_model coupled"], (4,), (h.CAPACITY,), driver=driver)
        done = [RequestState(i, request) for i, request in enumerate(asked)]
        loop.scheduler.put(done)
        waited[ahead] = 1
        while not loop.step():
            waited[ahead] += 1
        while len(loop.scheduler):
            loop.step()
        said[ahead] = [(one.tokens, one.finish_reason, logprobs(one).tolist()) for one in done]
    assert waited[True] == waited[False] + 1
    assert said[True] == said[False]


def test_caches_are_as_large_as_their_window_and_no_change_of_it_compiles_anything():
    seen = set()

    def generate(engine, params, state, *rest):
        caches = state.cache, state.drafter.cache
        seen.add(
            (
                engine.window,
                *(leaf.shape[2] for leaf in jax.tree.leaves([one.layers for one in caches])),
            )
        )
        return XLA.generate(engine, params, state, *rest)

    driver = XLA._replace(generate=generate)
    loop = start(h.CHAINS["draft_model coupled"], (1, 2, 4), (64, h.CAPACITY), driver=driver)
    for _ in warm(loop.programs):
        pass
    before = num_compiled()
    assert before > 0
    seen.clear()
    churned(loop, some(16, seed=3), seed=4)
    assert num_compiled() == before
    assert {window for window, *_ in seen} == {64, h.CAPACITY}
    assert all(size == window for window, *sizes in seen for size in sizes)


def test_rows_that_run_wait_for_no_more_than_the_largest_chunk():
    """Several small pieces of prompts may come between two rounds."""
    read = [0]  # positions since the last round, for each round

    def prefill(*args):
        read[-1] += args[4]
        return XLA.prefill(*args)

    def generate(*args):
        read.append(0)
        return XLA.generate(*args)

    driver = XLA._replace(prefill=prefill, generate=generate)
    engine = Engine(h.TARGET, h.CHAINS["ngram"], walk, 0)
    params, shapes = h.weights(engine.drafter), plan((4,), (h.CAPACITY,), (8, 64))
    loop = Loop(engine, params, shapes, alternate=True, driver=driver)
    lengths = (5, 3, 12, 40, 7, 20, 2, 6)
    asked = [Request(tuple(range(n)), SamplingParams(), 0, n + 20, ()) for n in lengths]
    first, *others = [RequestState(i, request) for i, request in enumerate(asked)]
    loop.scheduler.put([first])
    while not loop.scheduler.decoding:
        loop.step()
    read[-1] = 0
    loop.scheduler.put(others)
    while len(loop.scheduler):
        loop.step()
    assert max(read) <= 64
    assert set(read) & {16, 24, 32}  # several pieces of 8


@functools.cache
def poisoned():
    """Build a target whose hidden states are NaN wherever it reads token 7."""

    def forward(
        params, tokens, positions, visible, cache, window, only=None, present=None, order="tree"
    ):
        where = positions, visible, cache, window, only, present
        output, cache = h.TARGET.forward(params, tokens, *where)
        (tokens,) = pick_one(only, (tokens,))
        hidden = jnp.where((tokens == 7)[:, :, None], jnp.nan, output.hidden)
        return output._replace(hidden=hidden), cache

    return h.TARGET._replace(forward=forward)


def test_numbers_that_are_not_finite_fail_one_request():
    """Its mates, and who has its slot next, do not notice."""
    sampling = SamplingParams(temperature=0.0, logprobs=20)

    def ask(*prompt):
        return Request(prompt, sampling, 0, len(prompt) + 40, (), ())

    good, dies_reading = ask(1, 2, 3), ask(1, 7)
    loop = start(h.CHAINS["ngram"], (4,), (h.CAPACITY,), target=poisoned())
    done = [RequestState(i, one) for i, one in enumerate([good, dies_reading, good, ask(1, 2, 4)])]
    loop.scheduler.put(done)
    while len(done[2].tokens) < 2:
        loop.step()
    assert loop.batch.state is not None
    assert done[0].finish_reason is None
    expected, text = done[0].tokens[:], loop.batch.state.text
    loop.batch.state = loop.batch.state._replace(
        text=text._replace(tokens=text.tokens.at[0].set(7))
    )
    while len(loop.scheduler):
        loop.step()
    assert done[1].finish_reason == "error"
    assert done[1].tokens == []
    assert done[0].finish_reason == "error"  # its last token was made 7 while it ran
    assert done[2].finish_reason == "length"
    assert done[2].tokens[: len(expected)] == expected
    (again,) = alone(loop, [good])
    assert again.tokens == done[2].tokens
