"""Hidden states that vLLM saves: the residual stream of our decoder, layer by layer."""

import base64
from pathlib import Path

import numpy as np

from specjax import LLM, SamplingParams
from specjax.audit.philox import Noise
from specjax.weights.hidden_states import HiddenStates, read_hidden_states

LAYERS, VOCAB, NUM_PROMPTS, LENGTH = (0, 3, 7), 256, 3, 24


def pack(array: np.ndarray) -> dict:
    """Write an array as JSON."""
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"shape": array.shape, "float32": data}


def unpack(packed: dict) -> np.ndarray:
    """Read what ``pack`` wrote."""
    return np.frombuffer(base64.b64decode(packed["float32"]), np.float32).reshape(packed["shape"])


def read(kv_transfer_params: dict) -> HiddenStates:
    """Read what an output says was saved."""
    return read_hidden_states(Path(kv_transfer_params["hidden_states_path"]))


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
        saved = [read(output["kv_transfer_params"]) for output in answer["outputs"]]
        return {
            "token_ids": [one.token_ids.tolist() for one in saved],
            "hidden_states": [pack(one.hidden_states) for one in saved],
        }

    theirs = vllm("hidden_states", job, keep)
    llm = LLM(
        checkpoints["cycle/target"],
        speculative_config=job["speculative_config"],
        **job["engine"],
    )
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(**job["sampling_params"]),
        use_tqdm=False,
    )
    worst = 0.0
    for output, ids, saved in zip(
        outputs, theirs["token_ids"], theirs["hidden_states"], strict=True
    ):
        ours, found = read(output.kv_transfer_params), unpack(saved)
        assert ours.token_ids.dtype == np.int64
        assert ours.token_ids.tolist() == ids == output.prompt_token_ids
        assert ours.hidden_states.dtype == np.float32
        assert ours.hidden_states.shape == found.shape
        worst = max(worst, float(np.abs(ours.hidden_states - found).max() / np.abs(found).max()))
    assert worst < 1e-6
    compared(
        f"hidden states of layers {LAYERS}",
        "vLLM's extract_hidden_states",
        f"{NUM_PROMPTS} prompts x {LENGTH} tokens",
        f"within {worst:.0e} of the largest",
    )
