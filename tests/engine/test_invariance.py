"""``batch_invariant``: nothing changes where it is kept, one clear error where it is not."""

from typing import Any, cast

import pytest

from specjax import LLM, SamplingParams
from specjax.core.types import Engine
from specjax.drafters.ngram import ngram
from specjax.engine.invariance import check_batch_invariant
from specjax.verify.rejection import rejection
from specjax.verify.walk import walk
from tests.laws import harness as h

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
ENGINE = Engine(h.TARGET, ngram(3, 3, 1), walk, 0)


def check(platform="cpu", num_devices=1, schedule=(ENGINE,), learns=False):
    check_batch_invariant(platform, num_devices, schedule, learns=learns)


@pytest.mark.parametrize(
    ("facts", "reason", "remedy"),
    [
        ({"platform": "gpu"}, "device 'gpu'", "use device='cpu'"),
        ({"platform": "torch-cpu"}, "device 'torch-cpu'", "use device='cpu'"),
        ({"num_devices": 2}, "tensor_parallel_size=2", "use tensor_parallel_size=1"),
        (
            {"schedule": (ENGINE._replace(rule=rejection), ENGINE)},
            "num_speculative_tokens_per_batch_size",
            "use draft_sample_method='greedy'",
        ),
        (
            {"schedule": (ENGINE._replace(rule=rejection),), "learns": True},
            "other requests",
            "rejection_sample_method='standard'",
        ),
    ],
)
def test_what_does_not_keep_it_is_refused_with_reason_and_remedy(facts, reason, remedy):
    with pytest.raises(ValueError, match=rf"batch_invariant=True.*{reason}.*{remedy}"):
        check(**cast(Any, facts))


def test_one_cpu_keeps_it():
    check()
    check(schedule=(ENGINE, ENGINE), learns=True)
    check(schedule=(ENGINE._replace(rule=rejection),))


def test_an_option_of_the_model_says_so_before_weights_are_read(pair, monkeypatch):
    monkeypatch.setattr("specjax.engine.core.load", lambda *_, **__: pytest.fail("weights read"))
    with pytest.raises(
        ValueError, match="batch_invariant=True is not kept with device 'torch-cpu'"
    ):
        LLM(pair.target, device="torch-cpu", batch_invariant=True)
    many = {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 8, 1]]}
    many["rejection_sample_method"] = "block"
    with pytest.raises(ValueError, match="batch_invariant=True is not kept"):
        LLM(pair.target, speculative_config=many, batch_invariant=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_option_changes_nothing_where_it_is_kept(pair, dtype):
    """The same text and logprobs plainly and alone, and drafted in a batch that has to grow."""
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=90, logprobs=2, ignore_eos=True)
    plain = LLM(pair.target, dtype=dtype).generate("def f(x):", params)[0].outputs[0]
    llm = LLM(pair.target, dtype=dtype, speculative_config=NGRAM, batch_invariant=True)
    for found in llm.generate(["def f(x):"] * 3, [params] * 3):
        assert found.outputs[0].token_ids == plain.token_ids
        assert found.outputs[0].logprobs == plain.logprobs
