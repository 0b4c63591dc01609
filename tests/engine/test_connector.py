"""extract_hidden_states: what is saved of which requests, and what is refused."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import LLM, SamplingParams, SpeculativeConfig
from specjax.core.topology import causal
from specjax.engine.connector import read_connector
from specjax.models.build import build_target
from specjax.weights.hf_config import read_config
from specjax.weights.hidden_states import read_hidden_states
from specjax.weights.load import load_params

LAYERS, SIZE = [0, 1, 2], 64
IDS = "eagle_aux_hidden_state_layer_ids"
EXTRACT = {
    "method": "extract_hidden_states",
    "num_speculative_tokens": 1,
    "draft_model_config": {"hf_config": {IDS: LAYERS}},
}
CONNECTOR = {"kv_connector": "ExampleHiddenStatesConnector", "kv_role": "kv_producer"}
PROMPTS = [{"prompt_token_ids": [7 * i + j for j in range(3 + 9 * i)]} for i in range(5)]


def extractor(pair, folder, **extra) -> LLM:
    connector = CONNECTOR | {"kv_connector_extra_config": {"shared_storage_path": folder, **extra}}
    config = {"speculative_config": EXTRACT, "kv_transfer_config": connector}
    return LLM(pair.target, **config, max_num_seqs=2, max_model_len=128)


def saved(output):
    return read_hidden_states(Path(output.kv_transfer_params["hidden_states_path"]))


@pytest.fixture(scope="module")
def one_pass(pair):
    """Return a function from tokens to the residual streams of one pass, [T, A, D]."""
    config, _ = read_config(pair.target, dtype="float32")
    target, params = build_target(config, tuple(LAYERS)), load_params(pair.target, config)

    @jax.jit
    def taps(tokens):
        positions, cache = jnp.arange(SIZE)[None], target.init_cache(1, SIZE)
        output, _ = target.forward(params, tokens[None], positions, causal(SIZE), cache, SIZE)
        return output.taps[0]

    def read(tokens):
        padded = np.zeros(SIZE, np.int32)
        padded[: len(tokens)] = tokens
        return np.asarray(taps(padded))[: len(tokens)]

    return read


@pytest.fixture(scope="module")
def llm(pair, tmp_path_factory):
    return extractor(pair, tmp_path_factory.mktemp("saved"), allow_custom_save_path=True)


def test_each_request_leaves_its_prompts_hidden_states(llm, one_pass):
    """More requests than slots, some of which go on after the prompt."""
    params = [
        SamplingParams(temperature=0.8, max_tokens=1 + 6 * (i % 2), seed=i, ignore_eos=True)
        for i in range(len(PROMPTS))
    ]
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        found, ids = saved(output), prompt["prompt_token_ids"]
        assert found.token_ids.dtype == np.int64
        assert found.token_ids.tolist() == ids
        np.testing.assert_allclose(found.hidden_states, one_pass(ids), atol=2e-5)


@pytest.mark.parametrize("max_tokens", [1, 7])
def test_output_tokens_are_included_where_asked_but_for_the_last(
    llm, one_pass, tmp_path, max_tokens
):
    path = tmp_path / "new" / "here.safetensors"
    wanted = {"include_output_tokens": True, "hidden_states_path": str(path)}
    params = SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        ignore_eos=True,
        extra_args={"kv_transfer_params": wanted},
    )
    (output,) = llm.generate(PROMPTS[1], params, use_tqdm=False)
    assert output.kv_transfer_params == {"hidden_states_path": str(path)}
    ids = [*output.prompt_token_ids, *output.outputs[0].token_ids][:-1]
    found = saved(output)
    assert found.token_ids.tolist() == ids
    np.testing.assert_allclose(found.hidden_states, one_pass(ids), atol=2e-5)


def test_a_folder_is_shared_without_a_file_being_replaced(pair, tmp_path):
    params = SamplingParams(max_tokens=1)
    for _ in range(2):
        (output,) = extractor(pair, tmp_path).generate(PROMPTS[0], params, use_tqdm=False)
        assert output.request_id == "0"
    names = [path.name for path in tmp_path.iterdir()]
    assert len(names) == 2
    assert all(name.startswith("0-") and name.endswith(".safetensors") for name in names)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_speculative_tokens": 2}, "requires num_speculative_tokens to be 1, got 2"),
        ({"draft_sample_method": "coupled"}, "only supports draft_sample_method='greedy'"),
        ({"rejection_sample_method": "block"}, "'block' could verify"),
        ({"disable_padded_drafter_batch": True}, "disable_padded_drafter_batch is not supported"),
        ({"draft_model_config": None}, f"{IDS} must be set in the draft model config"),
        ({"draft_model_config": {"hf_config": {IDS: []}}}, f"{IDS} must be set"),
        ({"draft_model_config": {"hf_config": {IDS: [1, 1]}}}, r"different .* got \[1, 1\]"),
        ({"draft_model_config": {"hf_config": {IDS: [-1]}}}, r"from 0 on, got \[-1\]"),
        ({"draft_model_config": {"hf_config": {IDS: [1], "a": 2}}}, "must be like"),
        ({"model": "some/draft"}, "takes no draft model, got model='some/draft'"),
    ],
)
def test_a_wrong_speculative_config_is_one_clear_error(change, words):
    with pytest.raises(ValueError, match=words):
        SpeculativeConfig.from_dict(EXTRACT | change)


def test_layers_are_saved_in_ascending_order_and_a_warning_says_so():
    hf_config = {IDS: [2, 0]}
    with pytest.warns(UserWarning, match=r"\[2, 0\]: saved in the order \[0, 2\]") as seen:
        config = SpeculativeConfig.from_dict(
            EXTRACT | {"draft_model_config": {"hf_config": hf_config}}
        )
    assert len(seen) == 1
    assert config.layers == (0, 2)
    assert SpeculativeConfig.from_dict(EXTRACT).layers == tuple(LAYERS)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "pass kv_transfer_config="),
        ({}, "Connector None is not registered"),
        (CONNECTOR | {"kv_connector": "NixlConnector"}, "'NixlConnector' is not registered"),
        (CONNECTOR | {"kv_role": None}, "Please specify kv_role"),
        (CONNECTOR | {"kv_role": "producer"}, "Unsupported kv_role: 'producer'"),
        (CONNECTOR | {"kv_role": "kv_consumer"}, "must be 'kv_producer', got 'kv_consumer'"),
        (CONNECTOR | {"kv_rank": 0}, "unknown kv_transfer_config key 'kv_rank'"),
        (
            CONNECTOR | {"kv_connector_extra_config": {"shared_path": "/tmp"}},
            "Did you mean 'shared_storage_path'",
        ),
        (
            CONNECTOR | {"kv_connector_extra_config": {"shared_storage_path": "/dev/null"}},
            "shared_storage_path='/dev/null' takes no files",
        ),
        ("{", "kv_transfer_config is not valid JSON"),
    ],
)
def test_a_wrong_connector_is_one_clear_error(config, words):
    with pytest.raises(ValueError, match=words):
        read_connector(config, SpeculativeConfig.from_dict(EXTRACT))


def test_a_connector_is_for_extraction_alone():
    ngram = SpeculativeConfig(method="ngram", num_speculative_tokens=2)
    for other in (ngram, None):
        with pytest.raises(ValueError, match="only works when using 'extract_hidden_states'"):
            read_connector(CONNECTOR, other)
        assert read_connector(None, other) is None


def test_what_has_no_meaning_here_is_accepted_with_one_warning(tmp_path):
    extra = {"shared_storage_path": tmp_path, "use_synchronization_lock": False}
    config = CONNECTOR | {"kv_role": "kv_both", "kv_connector_extra_config": extra}
    with pytest.warns(UserWarning, match="use_synchronization_lock$") as seen:
        connector = read_connector(config, SpeculativeConfig.from_dict(EXTRACT))
    assert len(seen) == 1
    assert connector is not None
    assert connector.folder == tmp_path


def test_layers_the_target_lacks_are_refused_before_its_weights_are_read(pair, tmp_path):
    hf_config = {"hf_config": {IDS: [1, 3]}}
    with pytest.raises(ValueError, match="has 3, the target has 2 layers: use 0 "):
        LLM(
            pair.target,
            speculative_config=EXTRACT | {"draft_model_config": hf_config},
            kv_transfer_config=CONNECTOR
            | {"kv_connector_extra_config": {"shared_storage_path": tmp_path}},
        )


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (SamplingParams(n=2), "one file per request, got n=2"),
        (SamplingParams(extra_args={"a": 1}), "extra_args may hold kv_transfer_params"),
        (
            SamplingParams(extra_args={"kv_transfer_params": {"include_outputs": True}}),
            "Did you mean 'include_output_tokens'",
        ),
    ],
)
def test_a_wrong_request_is_one_clear_error(llm, params, words):
    with pytest.raises(ValueError, match=words):
        llm.generate(PROMPTS[0], params)


def test_a_request_names_its_file_only_where_that_is_allowed(pair, tmp_path):
    wanted = {"kv_transfer_params": {"hidden_states_path": str(tmp_path / "x")}}
    params = SamplingParams(extra_args=wanted)
    with pytest.raises(ValueError, match="set allow_custom_save_path"):
        extractor(pair, tmp_path).generate(PROMPTS[0], params)
    with pytest.raises(ValueError, match="needs kv_transfer_config"):
        LLM(pair.target).generate(PROMPTS[0], params)
