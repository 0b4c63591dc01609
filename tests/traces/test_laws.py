"""A log of our own engine tells what the engine counted, and what another K would have done."""

import numpy as np
import pytest

from specjax import LLM, SamplingParams
from specjax.traces import (
    counterfactual,
    counters,
    fixed,
    off_after,
    off_beyond,
    read_trace,
    to_eagle,
    to_vllm,
)
from tests.checkpoints.cycle import build
from tests.checkpoints.language import VOCAB

TEXTS = [
    {"prompt_token_ids": row.tolist()}
    for row in np.random.default_rng(5).integers(0, VOCAB, (6, 12))
]
DRAFT = {"method": "draft_model"}
COUPLED = {**DRAFT, "draft_sample_method": "coupled"}
NGRAM = {"method": "ngram", "prompt_lookup_max": 3}


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Return a function that runs a config once and gives (outputs, trace, llm)."""
    folder, done = tmp_path_factory.mktemp("traces"), {}
    models = build(folder)

    def run(config, k, temperature=0.0):
        key = (tuple(sorted(config.items())), k, temperature)
        if key not in done:
            draft = {"model": str(models["draft"])} if config["method"] == "draft_model" else {}
            speculation = {**config, **draft, "num_speculative_tokens": k}
            llm = LLM(models["llama"], speculative_config=speculation)
            params = SamplingParams(temperature=temperature, max_tokens=40, seed=7, ignore_eos=True)
            path = folder / f"{len(done)}.jsonl"
            outputs = llm.generate(TEXTS, params, trace=path, use_tqdm=False)
            done[key] = outputs, read_trace(path), llm
        return done[key]

    return run


@pytest.mark.parametrize("config", [DRAFT, NGRAM], ids=["draft_model", "ngram"])
def test_the_logs_counters_are_the_engines(traced, config):
    outputs, trace, llm = traced(config, 5)
    assert counters(trace) == llm.counters
    for i, output in enumerate(outputs):
        one = trace.where(trace.request == i)
        metrics = output.outputs[0].spec_decode_metrics
        drafts = one.drafted > 0
        assert tuple(one.drafted[drafts].tolist()) == metrics.per_step_drafted
        assert tuple(one.accepted[drafts].tolist()) == metrics.per_step_accepted
        assert one.emitted.sum() == len(output.outputs[0].token_ids)
        assert (np.diff(one.time) >= 0).all()
    said = {number.name: number.value for number in to_vllm(trace)}
    assert said["acceptance rate"] == pytest.approx(llm.counters.acceptance_rate)
    assert said["mean acceptance length"] == pytest.approx(llm.counters.mean_acceptance_length)
    rates = llm.counters.acceptance_rate_per_pos
    assert [said[f"acceptance rate at position {i}"] for i in range(5)] == pytest.approx(rates)
    tokens, rounds = trace.emitted[trace.rounds].sum(), trace.rounds.sum()
    assert to_eagle(trace)[0].value == pytest.approx(tokens / rounds)


def test_the_log_does_not_change_the_text(traced):
    outputs, _, llm = traced(DRAFT, 2)
    params = SamplingParams(temperature=0.0, max_tokens=40, seed=7, ignore_eos=True)
    again = llm.generate(TEXTS, params, use_tqdm=False)
    assert [o.outputs[0] for o in outputs] == [o.outputs[0] for o in again]


def same_rounds(replayed, real):
    """Compare rounds; a request's last one counts accepted tokens past its end, which differ."""
    assert replayed.names == real.names
    for name in ("request", "step", "drafted", "emitted"):
        np.testing.assert_array_equal(getattr(replayed, name), getattr(real, name))
    last = np.append(np.diff(real.request) > 0, True)
    np.testing.assert_array_equal(replayed.accepted[~last], real.accepted[~last])


@pytest.mark.parametrize(
    ("config", "temperature", "k"),
    [(DRAFT, 0.0, 2), (COUPLED, 0.8, 2)],
    ids=["greedy", "coupled"],
)
def test_a_smaller_k_is_a_real_run_with_that_k(traced, config, temperature, k):
    """3 divides 6: nobody had to look behind a bonus token."""
    _, trace, _ = traced(config, 5, temperature)
    found = counterfactual(trace, fixed(k))
    assert found.exact
    _, real, _ = traced(config, k, temperature)
    same_rounds(found.wrong, real)
    same_rounds(found.right, real)


def test_where_it_is_not_exact_the_real_run_lies_between(traced):
    """4 does not divide 6."""
    _, trace, _ = traced(DRAFT, 5)
    found = counterfactual(trace, fixed(3))
    assert not found.exact
    low, high = found.num_rounds
    _, real, _ = traced(DRAFT, 3)
    assert low <= real.rounds.sum() <= high
    assert high - low <= 0.25 * low  # and says something


def test_the_logs_own_k_and_plain_decoding_replay_exactly(traced):
    _, trace, _ = traced(DRAFT, 5)
    same = counterfactual(trace, fixed(5))
    assert same.exact
    same_rounds(same.wrong, trace)
    none = counterfactual(trace, fixed(0), cost=lambda drafted: 1.0 + 0.1 * drafted)
    assert none.exact
    assert none.wrong.rounds.sum() == trace.emitted.sum() - len(trace.names)
    first = none.wrong.time[none.wrong.step == 0]
    last = [none.wrong.time[none.wrong.request == i].max() for i in range(len(trace.names))]
    np.testing.assert_allclose(last - first, 39)  # 39 further tokens at 1 each


def test_ngram_drafts_depend_on_where_a_round_begins(traced):
    """Why the module excludes it: the replay misses the real run."""
    _, trace, _ = traced(NGRAM, 5)
    _, real, _ = traced(NGRAM, 2)
    replayed = counterfactual(trace, fixed(2)).wrong
    assert len(replayed.step) != len(real.step) or (replayed.drafted != real.drafted).any()


def test_policies_switch_drafting_off(traced):
    _, trace, _ = traced(DRAFT, 5)
    early = counterfactual(trace, off_beyond(20, 5)).wrong
    before = np.cumsum(early.emitted) - early.emitted
    starts = np.cumsum([0, *np.bincount(early.request, early.emitted)[:-1]])[early.request]
    drafting = early.drafted > 0
    assert ((before - starts)[drafting] < 20).all()
    assert not drafting[early.rounds & (before - starts >= 20)].any()
    paused = counterfactual(trace, off_after(1, 3, 5)).wrong
    for i in range(len(trace.names)):
        one = paused.where((paused.request == i) & paused.rounds)
        rounds = list(zip(one.drafted.tolist(), one.accepted.tolist(), strict=True))
        for j, (drafted, accepted) in enumerate(rounds):
            if drafted and not accepted:
                assert all(d == 0 for d, _ in rounds[j + 1 : j + 4])
                assert all(d == 5 for d, _ in rounds[j + 4 : j + 5])
    with pytest.raises(ValueError, match=r"tokens drafted by the policy must be in \[0, 5\]"):
        counterfactual(trace, fixed(6))
