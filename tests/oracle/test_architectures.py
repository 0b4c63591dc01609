"""Every architecture that vLLM's CPU backend runs: our greedy text is vLLM's, in float32."""

import numpy as np
import pytest

from specjax import LLM, SamplingParams
from specjax.audit.philox import Noise
from specjax.oracle.ask import OracleError, ask
from specjax.oracle.environment import OracleMissing
from specjax.weights.hf_facts import ARCHITECTURES as KNOWN
from tests.checkpoints.architectures import ARCHITECTURES, NOT_ON_CPU, VOCAB, WINDOW
from tests.oracle.conftest import place

LENGTHS, NUM_TOKENS = (40, 33, 21, 9), 32  # of prompts; three are longer than every window
MAX_MODEL_LEN = 128
MARGIN = 1e-3  # of log probabilities: rounding does not choose between the two best tokens
SECTION = "architectures"


def job(name: str) -> dict:
    """Ask for greedy completions of random prompts of different lengths."""
    noise = Noise(25)
    engine = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 8}
    if name.startswith("deepseek"):  # vLLM's default refuses latent heads of these sizes
        engine |= {"attention_backend": "CPU_MLA"}
    if name == "llama-4":  # a chunk is whole blocks
        engine |= {"block_size": ARCHITECTURES[name][2]["attention_chunk_size"]}
    return {
        "kind": "offline",
        "model": f"tiny/{name}",
        "prompts": [noise.integers(2, VOCAB, length).tolist() for length in LENGTHS],
        "sampling_params": {"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True},
        "engine": engine,
    }


def margin(tokens: list[dict]) -> float:
    """Return how much the best token of each place is more likely than the next, at least."""
    best = np.sort([[entry.logprob for entry in one.values()] for one in tokens])
    return float((best[:, -1] - best[:, -2]).min())


def refused(name: str) -> tuple[str, ...]:
    """Return the row about an architecture that vLLM's CPU backend refuses."""
    architecture, *_, reason = NOT_ON_CPU[name]
    return f"`{architecture}`, {name}", "vLLM", "0", f"refused there: {reason}", SECTION


def test_prompts_are_longer_than_windows_and_no_architecture_is_left_out(compared):
    assert sum(length > WINDOW for length in LENGTHS) >= 3
    assert {one[0] for one in (ARCHITECTURES | NOT_ON_CPU).values()} == set(KNOWN)
    for name in NOT_ON_CPU:
        compared(*refused(name))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_text_of_every_architecture_is_vllms(name, vllm, checkpoints, compared):
    asked = job(name)
    theirs = vllm(f"architecture_{name}", asked)
    llm = LLM(checkpoints[f"tiny/{name}"], max_model_len=MAX_MODEL_LEN, max_num_seqs=len(LENGTHS))
    params = SamplingParams(**asked["sampling_params"], logprobs=2)
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    mine = [one.outputs[0] for one in llm.generate(prompts, params, use_tqdm=False)]
    assert min(margin(one.logprobs) for one in mine) > MARGIN
    assert [one.token_ids for one in mine] == [one["token_ids"] for one in theirs["outputs"]]
    what, count = f"`{ARCHITECTURES[name][0]}`, {name}", f"{len(LENGTHS)} prompts x {NUM_TOKENS}"
    compared(what, "vLLM's greedy text", f"{count} tokens", "equal", SECTION)


@pytest.mark.oracle
@pytest.mark.parametrize("name", NOT_ON_CPU)
def test_vllms_cpu_backend_refuses_the_others(name, checkpoints, compared):
    asked = job(name)
    dummy = {**asked, "engine": {**asked["engine"], "load_format": "dummy"}}
    try:
        with pytest.raises(OracleError, match=NOT_ON_CPU[name][-1]):
            ask(place(dummy, checkpoints))
    except OracleMissing as missing:
        pytest.skip(str(missing))
    compared(*refused(name))
