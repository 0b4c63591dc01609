"""Law 1 on what ships: the same bits alone and in company, with and without a drafter."""

import functools

import pytest

from specjax.bundled import prompts
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams

TEXTS = [one["turns"][0] for one in prompts()[::6]] + ["def f(", "import os\n\n\nclass A:\n"]
PARAMS = [  # greedy and hot, by turns
    SamplingParams(temperature=0.7 * (i % 2), max_tokens=24, logprobs=3, seed=i, ignore_eos=True)
    for i in range(len(TEXTS))
]
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}
TREE = {"model": "bundled:draft", "speculative_token_tree": "[(0,), (1,), (0, 0), (1, 0)]"}
MTP = {"method": "mtp", "model": "bundled:mtp", "num_speculative_tokens": 7}


def said(llm: LLM) -> list[tuple[list[int], list[dict[int, float]]]]:
    """Return every request's tokens, and the log probabilities at each."""
    found = []
    for request in llm.generate(TEXTS, PARAMS, use_tqdm=False):
        (output,) = request.outputs
        scores = [{id: one.logprob for id, one in at.items()} for at in output.logprobs or []]
        found.append((list(output.token_ids), scores))
    return found


@functools.cache
def alone(dtype: str):
    """One request at a time, plainly."""
    return said(LLM("bundled", dtype=dtype, max_num_seqs=1))


@pytest.mark.parametrize(
    ("config", "batch", "dtype"),
    [
        (None, 6, "auto"),
        (NGRAM, 4, "auto"),
        (TREE, 3, "auto"),
        (MTP, 6, "auto"),
        (NGRAM, 6, "bfloat16"),
    ],
    ids=["plain-6", "ngram-4", "tree-3", "mtp-6", "ngram-6-bfloat16"],
)
def test_real_prompts_get_the_same_bits_in_any_company(config, batch, dtype):
    llm = LLM("bundled", dtype=dtype, max_num_seqs=batch, speculative_config=config)
    assert said(llm) == alone(dtype)
    if config is not None:
        assert llm.counters.num_accepted_tokens > 0
