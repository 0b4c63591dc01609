"""The guides' keywords: the modern form of each, or one warning, or an error with the remedy."""

import warnings

import pytest

from specjax.engine.options.legacy import (
    ENGINE_ONLY,
    LLM_OPTIONS,
    accept_engine_only,
    translate_legacy,
)

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("legacy", "modern"),
    [
        (
            {"speculative_model": "facebook/opt-125m", "num_speculative_tokens": 5},
            {"method": "draft_model", "model": "facebook/opt-125m", "num_speculative_tokens": 5},
        ),
        (
            {"speculative_model": "[ngram]", "num_speculative_tokens": 5,
             "ngram_prompt_lookup_max": 4},
            {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4,
             "prompt_lookup_min": 1},
        ),
        (
            {"speculative_model": "path/to/eagle-head", "speculative_method": "eagle",
             "num_speculative_tokens": 5},
            {"model": "path/to/eagle-head", "method": "eagle", "num_speculative_tokens": 5},
        ),
        (
            {"speculative_model": "draft", "speculative_draft_tensor_parallel_size": 1},
            {"model": "draft", "method": "draft_model", "draft_tensor_parallel_size": 1},
        ),
    ],
)  # fmt: skip
def test_legacy_keywords_become_the_modern_form_with_one_warning(legacy, modern):
    kwargs = {"model": "target", **legacy, "use_v2_block_manager": True}
    with pytest.warns(DeprecationWarning, match="use speculative_config={") as seen:
        assert translate_legacy(kwargs) == modern
    assert len(seen) == 1
    assert kwargs == {"model": "target"}


def test_without_legacy_keywords_nothing_happens():
    kwargs = {"model": "target", "speculative_config": NGRAM, "use_v2_block_manager": True}
    assert translate_legacy(dict(kwargs)) is None
    assert translate_legacy({"speculative_model": None, "num_speculative_tokens": None}) is None


def test_legacy_and_modern_together_or_without_a_model_are_errors():
    with pytest.raises(ValueError, match="both speculative_config and its legacy forms"):
        translate_legacy({"speculative_model": "x"}, NGRAM)
    with pytest.raises(ValueError, match="without a speculative model or method"):
        translate_legacy({"num_speculative_tokens": 5})


def test_engine_only_options_are_accepted_with_one_warning():
    with pytest.warns(UserWarning, match="enforce_eager, gpu_memory_utilization") as seen:
        accept_engine_only({"enforce_eager": True, "gpu_memory_utilization": 0.8})
    assert len(seen) == 1


def test_nothing_given_is_nothing_warned():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accept_engine_only({})
    assert not set(ENGINE_ONLY) & set(LLM_OPTIONS)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("enforce_eagr", "enforce_eager"), ("max_model_length", "max_model_len"),
     ("speculative_modle", "speculative_model")],
)  # fmt: skip
def test_an_unknown_keyword_is_a_type_error_naming_the_nearest(name, nearest):
    with pytest.raises(TypeError, match=f"'{name}'. Did you mean '{nearest}'"):
        accept_engine_only({name: 1})
