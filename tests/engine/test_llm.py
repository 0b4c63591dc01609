"""``LLM`` on the shipped pair: real text, every drafter, and every way to ask wrongly."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specjax import LLM, SamplingParams
from specjax.bundled import prompts
from specjax.engine.driver import XLA
from tests.checkpoints.shallow import shallow_target

PROMPTS = [entry["turns"][0] for entry in prompts()]
ONE_PIECE = [PROMPTS[i] for i in (0, 3, 4, 5, 6, 7, 8, 11)]  # read at once, as 192 positions
TWO_PIECES = PROMPTS[1:3]  # as 128 and 16
NEVER = 2047  # a stop id that nothing says: so rows with a stop id of their own fit the programs
DRAFT = {"model": "bundled:draft", "num_speculative_tokens": 4}
CONFIGS = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4},
    "draft_model": DRAFT,
    "coupled": {**DRAFT, "draft_sample_method": "coupled"},
    "probabilistic": {**DRAFT, "draft_sample_method": "probabilistic"},
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=48, stop_token_ids=[NEVER])


@pytest.fixture(scope="module")
def plain():
    return LLM("bundled", max_num_seqs=4)


@pytest.fixture(scope="module")
def drafted():
    return {
        name: LLM("bundled", speculative_config=c, max_num_seqs=4) for name, c in CONFIGS.items()
    }


@pytest.fixture(scope="module")
def small():
    """The smaller of the shipped models, for what depends on no model."""
    return LLM("bundled:draft", max_num_seqs=4)


def said(outputs):
    return [
        [(c.text, c.token_ids, c.finish_reason, c.stop_reason) for c in o.outputs] for o in outputs
    ]


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_text_is_identical_on_real_prompts(name, plain, drafted):
    """More prompts than slots: rows join and leave; still the same text, in fewer rounds."""
    few = [*ONE_PIECE[:6], *TWO_PIECES]
    expected = plain.generate(few, GREEDY)
    outputs = drafted[name].generate(few, GREEDY)
    assert said(outputs) == said(expected)
    metrics = [output.outputs[0].spec_decode_metrics for output in outputs]
    assert sum(m.num_accepted_draft_tokens for m in metrics) > 0
    assert all(output.outputs[0].spec_decode_metrics is None for output in expected)


@pytest.mark.parametrize("name", ["ngram", "draft_model", "coupled"])
def test_hot_text_is_identical_for_the_same_seed(name, plain, drafted):
    params = [
        SamplingParams(temperature=0.8, top_p=0.95, max_tokens=40, seed=2**63 + i, n=1 + i % 2)
        for i in range(4)
    ]
    params[1] = SamplingParams(
        temperature=1.2,
        top_k=50,
        repetition_penalty=1.2,
        min_tokens=5,
        seed=3,
        max_tokens=40,
        stop=["\n\n", "return"],
    )
    assert said(drafted[name].generate(ONE_PIECE[:4], params)) == said(
        plain.generate(ONE_PIECE[:4], params)
    )


def test_probabilistic_drafts_are_exact_and_reproducible(drafted):
    params = SamplingParams(temperature=0.7, seed=5, max_tokens=24, stop_token_ids=[NEVER])
    once, twice = (drafted["probabilistic"].generate(ONE_PIECE[:4], params) for _ in range(2))
    assert said(once) == said(twice)


def test_sample_i_of_n_uses_seed_plus_i(small):
    several = small.generate(PROMPTS[0], SamplingParams(n=3, seed=10, max_tokens=12))
    for i, one in enumerate(several[0].outputs):
        alone = small.generate(PROMPTS[0], SamplingParams(seed=10 + i, max_tokens=12))
        assert alone[0].outputs[0].token_ids == one.token_ids


def test_all_64_bits_of_a_seed_count(small):
    texts = {
        small.generate(PROMPTS[0], SamplingParams(seed=s, max_tokens=16))[0].outputs[0].text
        for s in (7, 2**32 + 7, 2**63 + 7)
    }
    assert len(texts) == 3


def test_a_stop_string_that_spans_tokens_and_rounds_cuts_ids_and_text(plain, drafted):
    """The text ends before the stop string, the ids with the token that completed it."""
    free = plain.generate([PROMPTS[1]] * 4, GREEDY)[0].outputs[0]
    tokenizer = plain.get_tokenizer()
    stops = []
    for middle in range(34, 5, -7):  # the last to stop begins first: the batch keeps its size
        before = tokenizer.decode(free.token_ids[:middle])
        stops.append(free.text[len(before) - 2 : len(before) + 3])
    params = [dataclasses.replace(GREEDY, stop=[stop], max_tokens=40) for stop in stops]
    for llm in (plain, *drafted.values()):
        outputs = llm.generate([PROMPTS[1]] * len(stops), params)
        for stop, output in zip(stops, outputs, strict=True):
            cut = output.outputs[0]
            assert cut.text == free.text[: free.text.index(stop)]
            assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
            assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
            whole = tokenizer.decode(cut.token_ids)
            assert stop in whole
            assert stop not in tokenizer.decode(cut.token_ids[:-1])


def test_eos_and_stop_token_ids_inside_a_draft(plain, drafted):
    """Beside eos, every row has a stop id of its own."""
    few = [TWO_PIECES[1], *ONE_PIECE[:3]]
    texts = [output.outputs[0].token_ids for output in plain.generate(few, GREEDY)]
    stops = [next(t for i, t in enumerate(text) if i >= 20 and t not in text[:i]) for text in texts]
    params = [
        SamplingParams(temperature=0.0, max_tokens=48, stop_token_ids=[stop]) for stop in stops
    ]
    for llm in (plain, *drafted.values()):
        for output, stop, free in zip(llm.generate(few, params), stops, texts, strict=True):
            cut = output.outputs[0]
            assert cut.token_ids == free[: free.index(stop) + 1]
            assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)


def test_logprobs_are_reported_for_every_token(plain, drafted):
    params = SamplingParams(temperature=0.0, max_tokens=20, logprobs=3, prompt_logprobs=1)
    expected, output = (llm.generate(PROMPTS[3], params)[0] for llm in (plain, drafted["ngram"]))
    assert len(output.outputs[0].logprobs) == len(output.outputs[0].token_ids) == 20
    total = 0.0
    for entry, token, other in zip(
        output.outputs[0].logprobs,
        output.outputs[0].token_ids,
        expected.outputs[0].logprobs,
        strict=True,
    ):
        assert entry[token].rank == 1
        assert len(entry) == 3
        assert entry.keys() == other.keys()
        assert entry[token].logprob == pytest.approx(other[token].logprob, abs=1e-4)
        total += entry[token].logprob
    assert output.outputs[0].cumulative_logprob == pytest.approx(total, abs=1e-4)
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert output.prompt_logprobs[0] is None
    for entry, token in zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True):
        assert token in entry


def test_logprob_token_ids_are_scored_at_every_token(small):
    """With drafts or without, beside rows that ask for none: the numbers of ``logprobs``."""
    asked = {"temperature": 0.0, "max_tokens": 12}
    prompt = PROMPTS[0]
    first = small.generate(prompt, SamplingParams(**asked, logprobs=20), use_tqdm=False)[0]
    ids = [token for token in first.outputs[0].logprobs[0] if token != 0][:5]
    params = [
        SamplingParams(**asked, logprobs=20),
        SamplingParams(**asked, logprobs=3, logprob_token_ids=[*ids, NEVER]),
        SamplingParams(**asked, logprob_token_ids=ids),
    ]
    each = [one.outputs[0] for one in small.generate([prompt] * 3, params, use_tqdm=False)]
    assert len({tuple(one.token_ids) for one in each}) == 1
    for likeliest, more, few in zip(*(one.logprobs for one in each), strict=True):
        token = next(iter(likeliest))
        assert set(few) == {token, *ids}
        assert set(more) == {token, *ids, NEVER}
        assert more[NEVER].logprob < 0
        for i in likeliest.keys() & few.keys():
            assert few[i].logprob == more[i].logprob == likeliest[i].logprob
    with pytest.raises(ValueError, match="logprob_token_ids contains out-of-vocab token id 9999"):
        small.generate(prompt, SamplingParams(logprob_token_ids=[9999]), use_tqdm=False)
    with pytest.raises(ValueError, match="greater than max allowed: 128"):
        SamplingParams(logprob_token_ids=range(129))


def test_prompt_logprobs_equal_the_logprobs_of_the_same_text_as_output(small):
    params = SamplingParams(temperature=0.0, max_tokens=12, logprobs=0)
    output = small.generate(PROMPTS[4], params)[0]
    ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    read = small.generate(
        {"prompt_token_ids": ids}, SamplingParams(max_tokens=1, prompt_logprobs=0)
    )[0]
    for entry, token, own in zip(
        read.prompt_logprobs[-12:], ids[-12:], output.outputs[0].logprobs, strict=True
    ):
        assert entry[token].logprob == pytest.approx(own[token].logprob, abs=1e-4)


def test_k_larger_than_the_room_left():
    """A prompt one token short of max_model_len leaves room for one token, drafted or not."""
    for config in (None, CONFIGS["ngram"], DRAFT):
        llm = LLM("bundled:draft", speculative_config=config, max_model_len=64)
        ids = [5] * 63
        output = llm.generate({"prompt_token_ids": ids}, SamplingParams(max_tokens=None))[0]
        assert len(output.outputs[0].token_ids) == 1
        assert output.outputs[0].finish_reason == "length"
        with pytest.raises(ValueError, match="no room for one output token"):
            llm.generate({"prompt_token_ids": [5] * 64})


def test_metrics_add_up(drafted):
    llm = drafted["draft_model"]
    before = {m.name: m for m in llm.get_metrics()}
    output = llm.generate(PROMPTS[5], GREEDY)[0].outputs[0].spec_decode_metrics
    after = {m.name: m for m in llm.get_metrics()}
    name = "vllm:spec_decode_num_accepted_tokens"
    assert after[name].value - before[name].value == output.num_accepted_draft_tokens
    assert sum(output.acceptance_histogram) == output.num_spec_steps
    assert sum(output.per_step_drafted) == output.num_draft_tokens
    assert sum(after[name + "_per_pos"].values) == after[name].value


def test_streaming_says_what_generate_says(drafted):
    whole = drafted["draft_model"].generate(PROMPTS[6], GREEDY)[0].outputs[0]
    texts = [sample.transcript.text for sample in drafted["draft_model"].stream(PROMPTS[6], GREEDY)]
    assert texts[-1] == whole.text
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert len(texts) < len(whole.token_ids)


def test_chat_renders_the_template(small):
    conversation = [{"role": "user", "content": "def add(a, b):"}]
    output = small.chat(conversation, SamplingParams(temperature=0.0, max_tokens=8))[0]
    rendered = small.get_tokenizer().apply_chat_template(conversation)
    assert output.prompt == rendered
    again = small.generate({"prompt": rendered}, SamplingParams(temperature=0.0, max_tokens=8))[0]
    assert again.outputs[0].text == output.outputs[0].text


def test_no_new_program_for_another_prompt_of_the_same_size():
    """Law 8 through the interface: other words, seeds and lengths in the same bucket."""
    llm = LLM("bundled:draft", speculative_config=CONFIGS["ngram"], max_num_seqs=4)
    llm.generate({"prompt_token_ids": [9] * 20}, SamplingParams(max_tokens=20, seed=0))
    before = (XLA.prefill._cache_size(), XLA.generate._cache_size())
    for n in (17, 25, 30):
        llm.generate({"prompt_token_ids": [n] * n}, SamplingParams(max_tokens=40 - n, seed=n))
    assert (XLA.prefill._cache_size(), XLA.generate._cache_size()) == before


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("", {}, "the decoder prompt cannot be empty"),
        ({"prompt_token_ids": []}, {}, "the decoder prompt cannot be empty"),
        ({"prompt_token_ids": [1, 2048]}, {}, "2048 is out of vocabulary"),
        ({"prompt_token_ids": [-1]}, {}, "-1 is out of vocabulary"),
        ({"prompt_token_ids": [True]}, {}, "True is out of vocabulary"),
        ({"text": "hello"}, {}, "a prompt is a string"),
        ("bad \ud800 text", {}, "lone surrogate"),
        ("x", {"stop_token_ids": [5000]}, "5000"),
        ("x", {"logit_bias": {9999: 1.0}}, "9999"),
        ("x", {"allowed_token_ids": [-3]}, "-3"),
        ({"prompt_token_ids": [1] * 2048}, {}, "no room for one output token"),
    ],
)
def test_a_bad_request_is_one_clear_error(prompt, params, message, plain):
    with pytest.raises(ValueError, match=message):
        plain.generate(prompt, SamplingParams(**params))


def test_stop_of_nothing_is_refused():
    with pytest.raises(ValueError, match="stop cannot contain an empty string"):
        SamplingParams(stop="")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "/nowhere"}, ValueError, "does not download"),
        ({"max_model_len": 10**6}, ValueError, "max_model_len must be between"),
        ({"max_num_seqs": 0}, ValueError, "max_num_seqs"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5000}},
            ValueError,
            "num_speculative_tokens=5000 must be less than max_model_len=2048",
        ),
        ({"quantization": "awq"}, ValueError, "is unquantized: leave the option out"),
        ({"tensor_parallel_size": 4}, ValueError, "needs as many devices"),
        ({"device": "npu"}, ValueError, "npu"),
        ({"device": "quantum"}, ValueError, "quantum"),
        ({"dtype": "int4"}, ValueError, "int4"),
        ({"modle": "bundled"}, TypeError, "modle"),
        ({"speculative_config": {"method": "ngram"}}, ValueError, "num_speculative_tokens"),
        (
            {"speculative_config": {**DRAFT, "draft_tensor_parallel_size": 2}},
            ValueError,
            "draft_tensor_parallel_size",
        ),
    ],
)
def test_a_bad_option_is_one_clear_error(options, error, message):
    with pytest.raises(error, match=message):
        LLM(**{"model": "bundled", **options})


def test_engine_only_options_are_accepted_with_one_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        LLM("bundled", enforce_eager=True, trust_remote_code=True, gpu_memory_utilization=0.9)
    assert len(caught) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ids=st.lists(st.integers(0, 2047), min_size=1, max_size=16),
    temperature=st.sampled_from([0.3, 1.0, 5.0]),
    top_k=st.integers(1, 5000),
    seed=st.integers(-(2**63), 2**64 - 1),
    max_tokens=st.integers(1, 24),
)
def test_any_prompt_gives_the_same_text_drafted_and_plain(
    ids, temperature, top_k, seed, max_tokens, plain, drafted
):
    """Any bytes, broken UTF-8 included: ids equal, text is what the tokenizer decodes."""
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=0.9,
        seed=seed,
        max_tokens=max_tokens,
        ignore_eos=True,
    )
    expected = plain.generate({"prompt_token_ids": ids}, params)[0].outputs[0]
    output = drafted["coupled"].generate({"prompt_token_ids": ids}, params)[0].outputs[0]
    assert output.token_ids == expected.token_ids
    assert output.text == expected.text
    assert len(output.token_ids) == max_tokens


LATENT = """
import jax, jax.numpy as jnp, numpy as np
from specjax.engine.device import check_divisible, choose_devices, sharding
from specjax.models.build import build_target, init_params
from specjax.core.topology import causal
from tests.laws.harness import LATENT, RECURRENT
mesh = choose_devices("cpu", 2)
def place(keys, leaf):
    path = tuple(key.key for key in keys)
    return jax.device_put(leaf, sharding(mesh, config, path, leaf.shape))
for config in (LATENT, RECURRENT):
    model, params = build_target(config), init_params(config, jax.random.key(0))
    check_divisible(config, mesh)
    @jax.jit
    def read(params):
        tokens, cache = jnp.arange(8)[None], model.init_cache(1, 8)
        output, _ = model.forward(params, tokens, tokens, causal(8), cache, 8)
        return model.logits(params, output.hidden)
    halves = jax.tree_util.tree_map_with_path(place, params)
    print(next(x.sharding.spec for x in jax.tree.leaves(halves["layers"][0]["mlp"]) if x.ndim > 1))
    print(np.abs(read(params) - read(halves)).max() < 1e-4)
"""


def test_two_devices_share_the_weights_and_say_the_same(tmp_path):
    """Tensor parallelism on two virtual CPU devices, in a process of its own; 3 is refused.

    Latent attention is split by heads, and every expert like an MLP; delta nets are copied.
    """
    code = (
        "from specjax import LLM, SamplingParams\n"
        f"model = {str(shallow_target(tmp_path))!r}\n"
        "p = SamplingParams(temperature=0.0, max_tokens=24)\n"
        "c = {'model': 'bundled:draft', 'num_speculative_tokens': 3}\n"
        "for tp in (1, 2):\n"
        "    llm = LLM(model, tensor_parallel_size=tp, speculative_config=c)\n"
        "    print(llm.generate('def f(x):', p)[0].outputs[0].token_ids)\n"
        "try:\n"
        "    LLM(model, tensor_parallel_size=3)\n"
        "except ValueError as error:\n"
        "    print(error)\n"
        f"{LATENT}"
    )
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=3", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **flags}, capture_output=True, text=True
    )
    one, two, refused, *two_models = done.stdout.splitlines()
    assert one == two
    assert len(set(json.loads(one))) > 4  # it says something
    assert "use one of [1, 2]" in refused
    assert two_models == ["P(None, None, 'tensor')", "True", "P(None, 'tensor')", "True"]


def test_unseeded_requests_share_no_seed_with_seeded_ones(small):
    params = [SamplingParams(max_tokens=16), SamplingParams(max_tokens=16, seed=0)]
    first, second = small.generate([PROMPTS[0]] * 2, params)
    assert first.outputs[0].token_ids != second.outputs[0].token_ids


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": 1e30}, "at most 1e"),
        ({"logit_bias": {1: 1e39}}, "within 1e"),
        ({"repetition_penalty": 1e-30}, "at least 1e-06"),
    ],
)
def test_extremes_that_float32_cannot_hold_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**params)


def test_a_bad_word_of_white_space_is_never_said(small):
    params = SamplingParams(temperature=0.0, max_tokens=24, bad_words=["\n"])
    newline = small.get_tokenizer().encode("\n", add_special_tokens=False)
    assert newline[0] not in small.generate(PROMPTS[0], params)[0].outputs[0].token_ids


def test_a_request_that_may_say_nothing_is_refused(plain):
    with pytest.raises(ValueError, match="forbids every one of allowed_token_ids"):
        plain.generate("x", SamplingParams(allowed_token_ids=[0], min_tokens=2))
