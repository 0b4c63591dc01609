"""SamplingParams: vLLM's defaults, and one clear error for everything else."""

import math
from dataclasses import FrozenInstanceError

import pytest

from specjax.engine.options.sampling_params import SamplingParams


def test_defaults_are_vllm_s():
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (
        1,
        1,
        1,
        0,
        0,
    )
    assert (params.max_tokens, params.min_tokens, params.seed) == (16, 0, None)
    assert params.repetition_penalty == 1.0
    assert params.stop == ()
    assert params.allowed_token_ids is None
    assert params.detokenize
    assert not params.ignore_eos


def test_n_is_the_one_positional_argument():
    assert SamplingParams(3).n == 3
    with pytest.raises(TypeError):
        SamplingParams(3, 0.5)  # type: ignore


@pytest.mark.parametrize("temperature", [0, 0.0, 9e-6])
def test_a_temperature_of_nothing_is_greedy_and_switches_the_filters_off(temperature):
    params = SamplingParams(temperature=temperature, top_p=0.3, top_k=7, min_p=0.2)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 1.0, 0, 0.0)


def test_a_small_temperature_is_kept():
    assert SamplingParams(temperature=1e-5).temperature == 1e-5


@pytest.mark.parametrize(
    ("seed", "stored"),
    [(0, 0), (2**64 - 1, 2**64 - 1), (-1, 2**64 - 1), (-(2**63), 2**63), (2**32 + 7, 2**32 + 7)],
)
def test_a_seed_is_64_bits_of_two_s_complement(seed, stored):
    assert SamplingParams(seed=seed).seed == stored


def test_one_stop_string_is_a_list_of_one():
    assert SamplingParams(stop="end") == SamplingParams(stop=["end"])
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


def test_equal_parameters_hash_alike_and_cannot_change():
    params = SamplingParams(stop=["a"], logit_bias={3: 1})
    assert hash(params) == hash(SamplingParams(stop="a", logit_bias={3: 1.0}))
    with pytest.raises(FrozenInstanceError):
        params.n = 2  # type: ignore


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"n": 0}, "n must be at least 1.*got 0"),
        ({"n": True}, "n must be an integer, got True"),
        ({"n": 2, "temperature": 0}, "n must be 1 when using greedy sampling, got 2"),
        ({"temperature": -0.1}, "temperature must be non-negative, got -0.1"),
        ({"temperature": math.nan}, "temperature must be a finite number, got nan"),
        ({"temperature": math.inf}, "temperature must be a finite number, got inf"),
        ({"temperature": True}, "temperature must be a number, got True"),
        ({"temperature": "1"}, "temperature must be a number, got '1'"),
        ({"temperature": None}, "temperature must be a number, got None"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.1}, r"top_p must be in \(0, 1\], got 1.1"),
        ({"top_k": -2}, r"top_k must be 0 \(disable\), or at least 1, got -2"),
        ({"top_k": 1.5}, "top_k must be an integer, got 1.5"),
        ({"min_p": -0.1}, r"min_p must be in \[0, 1\], got -0.1"),
        ({"min_p": 1.5}, r"min_p must be in \[0, 1\], got 1.5"),
        ({"presence_penalty": 2.1}, r"presence_penalty must be in \[-2, 2\], got 2.1"),
        ({"frequency_penalty": -2.1}, r"frequency_penalty must be in \[-2, 2\], got -2.1"),
        ({"repetition_penalty": 0}, "repetition_penalty must be greater than zero, got 0"),
        ({"repetition_penalty": math.nan}, "repetition_penalty must be a finite number"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"min_tokens": -1}, "min_tokens must be greater than or equal to 0, got -1"),
        ({"min_tokens": 9, "max_tokens": 8}, "less than or equal to max_tokens=8, got 9"),
        ({"seed": 2**64}, "seed must fit 64 bits.*got 18446744073709551616"),
        ({"seed": -(2**63) - 1}, "seed must fit 64 bits"),
        ({"seed": 1.5}, "seed must be an integer, got 1.5"),
        ({"seed": False}, "seed must be an integer, got False"),
        ({"stop": ""}, "stop cannot contain an empty string"),
        ({"stop": ["a", ""]}, "stop cannot contain an empty string"),
        ({"stop": ["a", 3]}, "stop must contain only strings, got 3"),
        ({"stop": 3}, "stop must be a list of strings, got 3"),
        ({"stop": "a", "detokenize": False}, "only supported when detokenize is True"),
        ({"stop_token_ids": [1, "2"]}, "stop_token_ids must contain only integers, got '2'"),
        ({"stop_token_ids": [True]}, "stop_token_ids must contain only integers, got True"),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list of token ids, got 5"),
        ({"bad_words": "word"}, "bad_words must be a list of strings, got 'word'"),
        ({"bad_words": [""]}, "bad_words cannot contain an empty string"),
        ({"ignore_eos": 1}, "ignore_eos must be True or False, got 1"),
        ({"logprobs": -2}, "logprobs must be non-negative or -1, got -2"),
        ({"prompt_logprobs": -2}, "prompt_logprobs must be non-negative or -1, got -2"),
        ({"logprobs": True}, "logprobs must be an integer, got True"),
        ({"logit_bias": [1]}, r"logit_bias must map token ids to numbers, got \[1\]"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias must contain only integers, got 'a'"),
        ({"logit_bias": {1: math.nan}}, r"logit_bias\[1\] must be a finite number"),
        ({"allowed_token_ids": []}, "allowed_token_ids is not None and empty"),
    ],
)
def test_a_wrong_value_is_one_clear_error(kwargs, words):
    with pytest.raises(ValueError, match=words):
        SamplingParams(**kwargs)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"top_k": 10**6},
        {"top_p": 1},
        {"max_tokens": None, "min_tokens": 100},
        {"logprobs": 0, "prompt_logprobs": 20},
        {"temperature": 2.5, "n": 4},
        {"stop_token_ids": range(3)},
    ],
)
def test_unusual_but_meaningful_values_are_fine(kwargs):
    SamplingParams(**kwargs)


@pytest.mark.parametrize("token_id", [-1, 100, 10**9])
@pytest.mark.parametrize("name", ["stop_token_ids", "logit_bias", "allowed_token_ids"])
def test_a_token_id_outside_the_vocabulary_is_named_with_its_size(name, token_id):
    value = {5: 1.0, token_id: 1.0} if name == "logit_bias" else [5, token_id]
    params = SamplingParams(**{name: value})
    with pytest.raises(ValueError, match=f"{name} .*{token_id}: the vocabulary has 100 tokens"):
        params.check_vocab(100)


def test_token_ids_inside_the_vocabulary_pass():
    params = SamplingParams(stop_token_ids=[0, 99], logit_bias={99: -1}, allowed_token_ids=[99])
    params.check_vocab(100)
    SamplingParams().check_vocab(1)


def test_log_probabilities_of_the_whole_vocabulary_are_its_size_where_they_are_allowed():
    asked = SamplingParams(logprobs=-1, prompt_logprobs=3)
    assert asked.limit_logprobs(500, 500) == SamplingParams(logprobs=500, prompt_logprobs=3)
    assert SamplingParams(logprobs=20).limit_logprobs(500, 20).logprobs == 20
    with pytest.raises(ValueError, match=r"Requested sample logprobs of 500, .* max allowed: 20"):
        asked.limit_logprobs(500, 20)
    with pytest.raises(ValueError, match=r"Requested prompt logprobs of 21, .* max allowed: 20"):
        SamplingParams(prompt_logprobs=21).limit_logprobs(500, 20)
