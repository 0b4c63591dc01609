"""Two drafters in one config, and K by request: the text stays, and the configs that fit no one."""

import pytest

from specjax import LLM, SamplingParams, SpeculativeConfig
from specjax.bundled import prompts

PROMPTS = [entry["turns"][0] for entry in prompts()][3:7]
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 3}
DRAFT = {"model": "bundled:draft", "num_speculative_tokens": 4}
EAGLE3 = {"method": "eagle3", "model": "bundled:eagle3", "num_speculative_tokens": 3}
DFLASH = {"method": "dflash", "model": "bundled:dflash", "num_speculative_tokens": 3}
CONFIGS = {
    "n-gram, then a head, then one that reads other layers": {
        **NGRAM, "fallback": {**EAGLE3, "fallback": DFLASH},
    },
    "suffix, then a draft model": {
        "method": "suffix", "num_speculative_tokens": 4, "fallback": DRAFT,
    },
    "a draft model that speculates": {
        **DRAFT, "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
    },
}  # fmt: skip
LIMITS = 0, 1, None, 3
SAMPLING = [
    SamplingParams(
        temperature=0.0 if b % 2 else 0.7,
        seed=b,
        max_tokens=40,
        extra_args=None if most is None else {"num_speculative_tokens": most},
    )
    for b, most in enumerate(LIMITS)
]


@pytest.fixture(scope="module")
def plain():
    outputs = LLM("bundled", max_num_seqs=4).generate(PROMPTS, SAMPLING)
    return [output.outputs[0] for output in outputs]


@pytest.mark.parametrize("name", CONFIGS)
def test_neither_two_drafters_nor_k_by_request_change_the_text(name, plain):
    llm = LLM("bundled", speculative_config=CONFIGS[name], max_num_seqs=4)
    found = [output.outputs[0] for output in llm.generate(PROMPTS, SAMPLING)]
    for ours, theirs, most in zip(found, plain, LIMITS, strict=True):
        assert ours.token_ids == theirs.token_ids
        counts = ours.spec_decode_metrics
        most = 4 if most is None else most
        assert max(counts.per_step_drafted, default=0) <= most
    assert sum(one.spec_decode_metrics.num_accepted_draft_tokens for one in found) > 0


@pytest.mark.parametrize("most", [-1, 2.5, True, "3"])
def test_a_wrong_limit_of_a_request_is_refused(most):
    with pytest.raises(ValueError, match="num_speculative_tokens must be"):
        SamplingParams(extra_args={"num_speculative_tokens": most})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**DRAFT, "fallback": {"method": "suffix"}}, "put it first"),
        ({**NGRAM, "fallback": {"method": "ngrm"}}, "Unsupported speculative method: 'ngrm'"),
        (
            {**NGRAM, "fallback": {**DRAFT, "rejection_sample_method": "block"}},
            "rejection_sample_method='block' inside fallback",
        ),
        (
            {
                **NGRAM, "fallback": DRAFT, "rejection_sample_method": "synthetic",
                "synthetic_acceptance_length": 2,
            },
            "accepts at the rates of one drafter",
        ),
        ({**NGRAM, "speculative_config": NGRAM}, "needs method='draft_model'"),
        (
            {**DRAFT, "draft_sample_method": "coupled", "speculative_config": NGRAM},
            "drafts a greedy chain",
        ),
        ({**DRAFT, "speculative_config": {"method": "suffix"}}, "max_cached_requests=0 there"),
        ({**NGRAM, "drafter_options": {}}, "drafter_options only works with"),
    ],
)  # fmt: skip
def test_parts_that_do_not_go_together_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        SpeculativeConfig.from_dict(config)
