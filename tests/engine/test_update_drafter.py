"""A head's weights are exchanged while it serves: the text stays, and nothing compiles."""

import asyncio
import shutil

import pytest
from safetensors.numpy import load_file, save_file

from specjax import LLM, SamplingParams
from specjax.bundled import resolve
from specjax.engine.service import Service
from tests.compiles import num_compiled

PROMPT = {"prompt_token_ids": list(range(40, 60))}
PARAMS = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """The shipped head, whose attention and MLP have been wiped out."""
    folder = tmp_path_factory.mktemp("heads") / "untrained"
    shutil.copytree(resolve("bundled:eagle3"), folder)
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if "proj" in name or name.startswith("fc"):
            weights[name] = weights[name] * 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def config(model):
    return {"method": "eagle3", "model": str(model), "num_speculative_tokens": 3}


def test_a_trained_head_takes_the_place_of_an_untrained_one(untrained):
    llm = LLM("bundled", speculative_config=config(untrained), max_num_seqs=1, max_model_len=128)
    (before,) = llm.generate(PROMPT, PARAMS, use_tqdm=False)
    compiled = num_compiled()
    llm.update_drafter("bundled:eagle3")
    (after,) = llm.generate(PROMPT, PARAMS, use_tqdm=False)
    assert num_compiled() == compiled
    assert after.outputs[0].token_ids == before.outputs[0].token_ids
    accepted = []
    for one in (before, after):
        metrics = one.outputs[0].spec_decode_metrics
        assert metrics is not None
        accepted.append(metrics.num_accepted_draft_tokens)
    assert accepted[1] > accepted[0] + 10


def test_a_service_takes_them_between_two_rounds_of_a_request(untrained):
    llm = LLM("bundled", speculative_config=config(untrained), max_num_seqs=1, max_model_len=128)
    (expected,) = llm.generate(PROMPT, PARAMS, use_tqdm=False)
    service = Service(llm.core, max_waiting=1)

    async def run(swap):
        (stream,) = service.submit_ids(PROMPT["prompt_token_ids"], PARAMS)
        tokens = []
        async for delta in stream:
            if swap and len(tokens) < 4:
                service.update_drafter("bundled:eagle3")
            tokens += delta.token_ids
        return tokens

    try:
        assert asyncio.run(run(swap=True)) == list(expected.outputs[0].token_ids)
        drafts = service.stats().counters.num_drafts
        assert asyncio.run(run(swap=False)) == list(expected.outputs[0].token_ids)
        assert service.stats().counters.num_drafts - drafts < 39  # now it accepts tokens
    finally:
        service.close(drain=False)


def test_another_head_is_refused(untrained, tmp_path):
    llm = LLM("bundled", speculative_config=config(untrained), max_model_len=128)
    with pytest.raises(ValueError, match=r"eagle|another head"):
        llm.update_drafter("bundled:eagle")
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    with pytest.raises(ValueError, match=r"only a drafting head's weights .* method is 'ngram'"):
        LLM("bundled", speculative_config=ngram).update_drafter("bundled:eagle3")
