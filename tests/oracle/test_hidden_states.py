"""Hidden states that vLLM saves: the residual stream of our decoder, layer by layer."""

import base64

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from specjax.audit.philox import Noise
from specjax.models.build import build_target
from specjax.topology import causal
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params

LAYERS, VOCAB, NUM_PROMPTS, LENGTH = (0, 3, 7), 256, 3, 24


def pack(array: np.ndarray) -> dict:
    """Write an array as JSON."""
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"shape": array.shape, "float32": data}


def unpack(packed: dict) -> np.ndarray:
    """Read what ``pack`` wrote."""
    return np.frombuffer(base64.b64decode(packed["float32"]), np.float32).reshape(packed["shape"])


def test_tapped_layers_are_vllms(vllm, checkpoints, compared, tmp_path):
    prompts = Noise(3).integers(0, VOCAB, NUM_PROMPTS, LENGTH).tolist()
    connector = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": tmp_path},
    }
    job = {
        "kind": "offline",
        "model": "cycle/target",
        "prompts": prompts,
        "sampling_params": {"temperature": 0.0, "max_tokens": 1},
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": LAYERS}},
        },
        "engine": {"max_model_len": 128, "kv_transfer_config": connector},
    }

    def keep(answer: dict) -> dict:
        saved = [output["kv_transfer_params"] for output in answer["outputs"]]
        saved = [load_file(one["hidden_states_path"]) for one in saved]
        return {
            "token_ids": [one["token_ids"].tolist() for one in saved],
            "hidden_states": [pack(one["hidden_states"]) for one in saved],
        }

    theirs = vllm("hidden_states", job, keep)
    config, _ = read_config(checkpoints["cycle/target"], dtype="float32")
    target = build_target(config, LAYERS)
    params, worst = load_params(checkpoints["cycle/target"], config), 0.0
    for prompt, ids, saved in zip(
        prompts, theirs["token_ids"], theirs["hidden_states"], strict=True
    ):
        assert ids == prompt
        positions, cache = jnp.arange(LENGTH)[None], target.init_cache(1, LENGTH)
        output, _ = target.forward(
            params, jnp.asarray([prompt]), positions, causal(LENGTH), cache, LENGTH
        )
        expected, found = np.asarray(output.taps[0]), unpack(saved)
        assert found.shape == expected.shape == (LENGTH, len(LAYERS), config.hidden_size)
        worst = max(worst, float(np.abs(found - expected).max() / np.abs(expected).max()))
    assert worst < 1e-5
    compared(
        f"hidden states of layers {LAYERS}",
        "vLLM's extract_hidden_states",
        f"{NUM_PROMPTS} prompts x {LENGTH} tokens",
        f"within {worst:.0e} of the largest",
    )
