"""LLM with a target whose layers have a recurrent state, and what is refused beside it."""

import shutil

import pytest

from specjax import LLM, SamplingParams
from tests.weights import tiny
from tests.weights.test_mtp import add_layer

PROMPTS = [{"prompt_token_ids": [5, 6, 7] * 4}, {"prompt_token_ids": list(range(40, 70))}]
DRAFTERS = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3},
    "mtp": {"method": "mtp", "num_speculative_tokens": 2},
}


@pytest.fixture(scope="module")
def folder(pair, tmp_path_factory):
    """A Qwen3-Next checkpoint with a tokenizer and an MTP layer."""
    folder = tmp_path_factory.mktemp("next")
    model = tiny.build("qwen3-next", vocab_size=260, max_position_embeddings=512)
    add_layer(tiny.save(model, folder), model, stacked=False)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{pair.target}/{name}", folder)
    return str(folder)


@pytest.mark.parametrize("name", DRAFTERS)
def test_speculation_says_what_plain_decoding_says_in_any_batch(name, folder):
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    facts = {"batch_invariant": True, "max_model_len": 128}
    plain = LLM(folder, **facts)
    drafted = LLM(folder, speculative_config=DRAFTERS[name], **facts)
    expected = [plain.generate([one], params)[0].outputs[0].token_ids for one in PROMPTS]
    found = [one.outputs[0].token_ids for one in drafted.generate(PROMPTS, params)]
    assert found == expected
    assert len(set(map(tuple, expected))) == 2


RECURRENT = {"method": "draft_model", "num_speculative_tokens": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RECURRENT, "recurrent state .*only attention"),
        (RECURRENT | {"speculative_config": DRAFTERS["ngram"]}, "recurrent state .*only attention"),
    ],
)
def test_what_cannot_draft_for_it_is_refused_with_the_reason(options, message, folder):
    with pytest.raises(ValueError, match=message):
        LLM(folder, speculative_config={"model": folder, **options})


def test_npu_bridge_refuses_a_recurrent_state(folder):
    with pytest.raises(ValueError, match=r"device='torch-cpu' .*Use device='auto'"):
        LLM(folder, device="torch-cpu")
