"""Every method that ships writes plain decoding's text: 24 prompts, three temperatures, bitwise."""

import functools

import pytest

from specjax import LLM, SamplingParams
from specjax.bench.methods import METHODS, PLAIN
from specjax.bundled import prompts

TEMPERATURES = (0.0, 0.7, 1.0)
TEXTS = [one["turns"][0] for one in prompts()]
PARAMS = [
    SamplingParams(temperature=t, max_tokens=24, logprobs=0, seed=i, ignore_eos=True)
    for t in TEMPERATURES
    for i in range(len(TEXTS))
]


def write(name: str) -> tuple[list[tuple[tuple[int, ...], float | None]], LLM]:
    """Return the tokens and the log probability of every text by a method."""
    llm = LLM("bundled", speculative_config=METHODS[name], max_num_seqs=8, max_model_len=256)
    found = llm.generate(TEXTS * len(TEMPERATURES), PARAMS, use_tqdm=False)
    outputs = [request.outputs[0] for request in found]
    return [(tuple(one.token_ids), one.cumulative_logprob) for one in outputs], llm


@functools.cache
def plain():
    return write(PLAIN)[0]


@pytest.mark.parametrize("name", [name for name in METHODS if name != PLAIN])
def test_every_method_writes_the_text_of_plain_decoding_bit_for_bit(name):
    assert len(TEXTS) == 24
    found, llm = write(name)
    assert found == plain()
    assert llm.counters.num_accepted_tokens > 0
