"""Rounds are counted whether or not they drafted, and the prefill is none."""

import pytest

from specjax import LLM, SamplingParams
from specjax.bench.rounds import num_rounds, tokens_per_round
from specjax.engine.outputs import CompletionOutput, RequestOutput, SpecDecodeMetrics

PROMPT = [7, 7]


def output(num_tokens: int, drafted: dict[int, int] | None) -> RequestOutput:
    """Make an output whose drafts began after so many committed tokens, and how many were kept."""
    metrics, drafts = None, []
    if drafted is not None:
        metrics = SpecDecodeMetrics.from_steps([3] * len(drafted), list(drafted.values()), 3)
        drafts = [(committed, [0, 0, 0]) for committed in drafted]
    tokens = [1] * num_tokens
    one = CompletionOutput(0, "", tokens, spec_decode_metrics=metrics, drafts=drafts)
    return RequestOutput("0", None, PROMPT, None, [one], True)


@pytest.mark.parametrize(
    ("num_tokens", "drafted", "rounds"),
    [
        (1, None, 0),  # the prefill's
        (6, None, 5),
        (6, {3: 2, 6: 1}, 2),  # 2 + 1 + (2 + 1) + (1 + 1) tokens
        (6, {3: 2, 6: 3}, 2),  # the same, cut at the end
        (6, {5: 0, 7: 0}, 5),  # two tokens, a draft, a token, a draft
        (6, {}, 5),
        (8, {3: 1, 6: 2}, 4),  # a token between the drafts, a token after them
    ],
)
def test_rounds_are_those_that_drafted_and_one_for_each_token_between_them(
    num_tokens, drafted, rounds
):
    assert num_rounds(output(num_tokens, drafted)) == rounds


def test_tokens_per_round_are_over_all_outputs():
    assert tokens_per_round([output(6, None), output(6, {3: 2, 6: 1})]) == pytest.approx(10 / 7)


def test_it_is_what_the_loop_counts(pair):
    config = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }
    llm = LLM(pair.target, speculative_config=config, max_model_len=128)
    prompt, params = "a b c a b c a b", SamplingParams(temperature=1.0, seed=3, max_tokens=50)
    *_, last = llm.stream(prompt, params)
    (output,) = llm.generate(prompt, params)
    assert len({len(one.drafted) > 0 for one in last.request_state.rounds[1:]}) == 2  # some drafted
    assert num_rounds(output) == len(last.request_state.rounds) - 1
