"""Adaptive K in the loop: texts stay, what is learned is what happened, nothing compiles late."""

import asyncio
import itertools

import numpy as np
import pytest

from specjax import LLM, SamplingParams
from specjax.core.policies import AdaptivePolicy, Choice, by_acceptance
from specjax.core.types import Engine, StepInfo
from specjax.drafters.ngram import ngram
from specjax.engine.adaptive import Adaptive
from specjax.engine.build import build_adaptive
from specjax.engine.options.speculative import SpeculativeConfig
from specjax.engine.service import Service
from specjax.verify.walk import walk
from tests.compiles import num_compiled
from tests.laws import harness as h

NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
PROMPTS = [[5, 6, 7, 8, 5, 6, 7], [9, 9, 9, 9], [3, 1, 4, 1, 5]]
PARAMS = [SamplingParams(temperature=t, max_tokens=24, seed=4) for t in (0.0, 0.7, 1.0)]


def texts(target, **options):
    llm = LLM(target, speculative_config={**NGRAM, **options}, max_model_len=100)
    found = llm.generate([{"prompt_token_ids": one} for one in PROMPTS], PARAMS, use_tqdm=False)
    return [one.outputs[0].token_ids for one in found], llm


def alternate(depths, rounds, monkeypatch):
    """Make the policy take one K after the other, each for some rounds."""

    def choose(state, running):
        return Choice(depths[state % len(depths)], rounds), state + 1

    turns = AdaptivePolicy(lambda: 0, choose, lambda state, seen: state, (0, 3))
    monkeypatch.setattr("specjax.engine.options.adaptive.by_throughput", lambda *_, **__: turns)


class Ticking:
    """A clock that stands until it is set."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_no_strategy_changes_the_text(pair):
    expected, _ = texts(pair.target)
    quick = {"warmup_batches": 0, "update_interval": 1}
    for adaptive in ("request", {"strategy": "ema", **quick}, "throughput_aware"):
        found, llm = texts(pair.target, adaptive=adaptive)
        assert found == expected
    assert llm.core.adaptive.engines.keys() == {0, 2, 3}


def test_a_service_warms_every_k_and_uses_more_than_one(pair, monkeypatch):
    alternate((0, 3), 1, monkeypatch)
    config = {**NGRAM, "adaptive": {"strategy": "throughput_aware", "candidate_steps": [0, 3]}}
    llm = LLM(pair.target, speculative_config=config, max_num_seqs=1, max_model_len=60)
    service = Service(llm.core, max_waiting=3)
    try:
        service.warm_up()
        before = num_compiled()

        async def run():
            (stream,) = service.submit_ids(PROMPTS[0], PARAMS[0])
            return [delta async for delta in stream]

        asyncio.run(run())
        assert num_compiled() == before
        (request,) = llm.generate({"prompt_token_ids": PROMPTS[0]}, PARAMS[0], use_tqdm=False)
        assert request.outputs[0].spec_decode_metrics is not None
    finally:
        service.close(drain=False)


def test_what_rounds_have_shown_is_learned_when_k_is_chosen_and_first_uses_are_not_timed(pair):
    seen, clock = [], Ticking()
    rule = by_acceptance([0, 3], update_interval=6)
    policy = rule._replace(learn=lambda state, one: seen.append(one) or rule.learn(state, one))
    llm = LLM(pair.target, speculative_config={**NGRAM, "adaptive": "ema"}, max_model_len=100)
    engines = {k: e for k, e in llm.core.adaptive.engines.items() if k in (0, 3)}
    adaptive = Adaptive(policy, engines, clock)
    infos = _infos([[1, 2], [4, 0]], [[0, 1], [3, 0]])

    def run(running=2, rounds=2):
        program = adaptive.start(running, adaptive.choose(running), 2, 2)
        return lambda: adaptive.end(program, infos, rounds)

    for start, end in ((0.0, 1.0), (1.0, 3.0), (2.0, 6.0)):  # the third is dispatched early
        clock.now = start
        finish = run()
        clock.now = end
        finish()
    assert [one.seconds for one in seen] == [None]  # the others wait for the next choice
    run(rounds=0)()  # all had ended: nothing ran
    assert [one.seconds for one in seen] == [None, 2.0 + 3.0]
    adaptive.interrupt()  # a prompt is read
    run()()
    run(running=1)()
    adaptive.rounds_left = 0
    adaptive.choose(1)
    assert [one.seconds for one in seen] == [None, 5.0, None, 0.0]
    assert [one.running for one in seen] == [2, 2, 2, 1]
    assert [one.rounds for one in seen] == [2, 4, 2, 2]
    assert {one.depth for one in seen} == {3}
    # three rounds of requests: they accepted 0, 1 and 3 tokens
    assert seen[0].reached.tolist() == [3, 2, 1]
    assert seen[0].accepted.tolist() == [2, 1, 1]
    assert seen[1].reached.tolist() == [6, 4, 2]


def _infos(emitted, accepted):
    nothing = np.zeros((2, 2), int)
    return StepInfo(
        nothing, np.array(accepted), np.array(emitted), nothing, nothing, nothing, None
    )  # fmt: skip


def test_several_processes_must_not_choose_by_their_own_clocks(monkeypatch):
    monkeypatch.setattr("specjax.engine.build.jax.process_count", lambda: 2)
    engine = Engine(h.TARGET, ngram(3, 3, 1), walk, 0)
    config = SpeculativeConfig.from_dict({**NGRAM, "adaptive": "throughput_aware"})
    with pytest.raises(ValueError, match="each process would measure other times"):
        build_adaptive(engine, None, config, 4)


def test_a_draft_model_rests_and_catches_up_and_the_text_stays(pair, monkeypatch):
    """K is 3, then 0, then 3 again, for eight rounds each; requests come and go meanwhile."""
    alternate((3, 0), 8, monkeypatch)
    adaptive = {"strategy": "throughput_aware", "candidate_steps": [0, 3]}
    config = {"model": pair.draft, "num_speculative_tokens": 3, "adaptive": adaptive}
    prompts = [{"prompt_token_ids": one} for one in PROMPTS]
    params = [
        SamplingParams(temperature=t, max_tokens=n, seed=4, ignore_eos=True)
        for t, n in ((0.0, 60), (0.7, 24), (0.0, 40))
    ]
    said = []
    for one in (None, config):
        llm = LLM(pair.target, speculative_config=one, max_model_len=100, max_num_seqs=2)
        found = llm.generate(prompts, params, use_tqdm=False)
        said.append([output.outputs[0].token_ids for output in found])
    assert said[0] == said[1]
    drafts = [committed for committed, _ in found[0].outputs[0].drafts]
    gaps = [after - before for before, after in itertools.pairwise(drafts)]
    assert max(gaps) >= 8  # it rested between two drafts
