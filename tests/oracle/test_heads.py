"""The cycle-language checkpoints in vLLM and here: same text, same drafts, same counters."""

from typing import Any

import pytest

from specjax import LLM, SamplingParams
from specjax.audit.philox import Noise
from specjax.core.metrics import SpecDecodeCounters
from tests.checkpoints.language import VOCAB
from tests.oracle.conftest import place

K, NUM_PROMPTS, PROMPT_LENGTH, NUM_TOKENS = 3, 20, 12, 48
METHODS = {  # name: (target, method, head's checkpoint, K)
    "draft_model": ("target", "draft_model", "draft", K),
    "eagle": ("target", "eagle", "eagle", K),
    "eagle_llama": ("llama", "eagle", "eagle", K),
    "eagle3": ("target", "eagle3", "eagle3", K),
    "eagle3_reduced": ("target", "eagle3", "eagle3_reduced", K),
    "eagle3_norm_before_fc": ("target", "eagle3", "eagle3_norm_before_fc", K),
    "eagle3_1": ("target", "eagle3", "eagle3_1", K),
    "eagle3_latent": ("deepseek", "eagle3", "eagle3_latent", K),
    "eagle3_speculators": ("target", "eagle3", "eagle3_speculators", K),
    "peagle_speculators": ("target", "eagle3", "peagle_speculators", 2),
    "dflash_speculators": ("target", "dflash", "dflash_speculators", 2),
    "peagle": ("target", "eagle3", "peagle", 2),
    "peagle_converted": ("target", "eagle3", "peagle_converted", 2),  # from the speculators format
    "dflash": ("target", "dflash", "dflash", 2),
    "dflash_causal": ("target", "dflash", "dflash_causal", 2),
    "dflash_sliding": ("target", "dflash", "dflash_sliding", 2),
    "dflash_reduced": ("target", "dflash", "dflash_reduced", 2),
    "dflash_mixed": ("target", "dflash", "dflash_mixed", 2),
    "dflash_mask": ("target", "dflash", "dflash_mask", 2),  # with mask_embedding.pt
    "dspark": ("target", "dspark", "dspark", 2),
    "dspark_speculators": ("target", "dspark", "dspark_speculators", 2),
    "pard": ("target", "draft_model", "pard", 2),
    "medusa": ("target", "medusa", "medusa", K),
    "medusa_original": ("target", "medusa", "medusa_original", K),
    "mimo": ("mimo", "mtp", None, 1),
    "deepseek": ("deepseek", "mtp", None, K),
    "deepseek_experts": ("deepseek_experts", "mtp", None, K),
}
V2 = ("dflash_mixed", "dspark", "dspark_speculators")  # what vLLM's other runner alone drafts
AT_ONCE = ("peagle", "peagle_converted", "peagle_speculators", "pard")


def job(target: str, config: dict | None) -> dict:
    """Ask for greedy completions of random prompts."""
    noise = Noise(7)
    engine: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 8}
    # with AMX, vLLM's default refuses latent heads of 16 numbers; a draft's backend is chosen apart
    reference = {"attention_backend": "CPU_MLA"}
    if target.startswith("deepseek"):
        engine |= reference
        config = config and config | reference
    asked = {
        "kind": "offline",
        "model": f"cycle/{target}",
        "prompts": noise.integers(0, VOCAB, NUM_PROMPTS, PROMPT_LENGTH).tolist(),
        "sampling_params": {"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True},
        "speculative_config": config,
        "engine": engine,
    }
    head = str((config or {}).get("model")).removeprefix("cycle/")
    return asked | {"runner": "v2"} if head in V2 else asked


def speculative_config(name: str) -> dict:
    """Return vLLM's options for a method."""
    _, method, head, depth = METHODS[name]
    config = {"method": method, "num_speculative_tokens": depth}
    if name in AT_ONCE:
        config["parallel_drafting"] = True
    return config if head is None else {**config, "model": f"cycle/{head}"}


def count(answer: dict, depth: int) -> SpecDecodeCounters:
    """Add up what vLLM says of its rounds."""
    counters = SpecDecodeCounters.zeros(depth)
    for output in answer["outputs"]:
        metrics = output["metrics"]
        counters = counters.add(metrics["per_step_drafted"], metrics["per_step_accepted"])
    return counters


@pytest.mark.parametrize("name", METHODS)
def test_vllm_loads_the_head_and_accepts_some_of_its_drafts(name, vllm, compared):
    target, *_, depth = METHODS[name]
    plain = vllm(f"cycle_{target}_plain", job(target, None))
    spoken = vllm(f"cycle_{name}", job(target, speculative_config(name)))
    for one, other in zip(plain["outputs"], spoken["outputs"], strict=True):
        assert one["token_ids"] == other["token_ids"]
    counters = count(spoken, depth)
    assert counters.acceptance_rate is not None
    assert 0.2 < counters.acceptance_rate < 0.95
    compared(
        f"cycle checkpoint, {name}",
        "vLLM without speculation",
        f"{NUM_PROMPTS} prompts x {NUM_TOKENS} tokens",
        f"loads; equal text; {counters.acceptance_rate:.0%} accepted",
    )


@pytest.mark.parametrize("name", METHODS)
def test_specjax_says_and_drafts_the_same(name, vllm, checkpoints, compared):
    target, config = METHODS[name][0], speculative_config(name)
    theirs = vllm(f"cycle_{name}", job(target, config))
    llm = LLM(
        checkpoints[f"cycle/{target}"],
        speculative_config=place({"speculative_config": config}, checkpoints)["speculative_config"],
        max_model_len=128,
    )
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in job(target, config)["prompts"]]
    number = 0
    for one, other, rounds in zip(
        llm.generate(prompts, params, use_tqdm=False),
        theirs["outputs"],
        theirs["rounds"],
        strict=True,
    ):
        output = one.outputs[0]
        assert list(output.token_ids) == other["token_ids"]
        assert [[at, list(draft)] for at, draft in output.drafts] == rounds
        number += len(rounds)
    assert llm.counters == count(theirs, config["num_speculative_tokens"])
    compared(
        f"text, drafts and counters on the cycle checkpoint, {name}",
        "vLLM's",
        f"{number} drafts",
        "equal",
    )


def test_stock_vllm_norms_the_keys_of_every_dflash_layer_with_the_firsts_weight(vllm, compared):
    asked = job("target", speculative_config("dflash"))
    repaired = vllm("cycle_dflash", asked)
    stock = vllm("cycle_dflash_stock", {**asked, "repairs": False})
    texts = [[one["token_ids"] for one in answer["outputs"]] for answer in (repaired, stock)]
    assert texts[0] == texts[1]
    drafts = [
        {(i, at): draft for i, rounds in enumerate(answer["rounds"]) for at, draft in rounds}
        for answer in (repaired, stock)
    ]
    both = drafts[0].keys() & drafts[1].keys()
    differ = sum(drafts[0][place] != drafts[1][place] for place in both)
    assert differ > 10
    result = f"{differ} of {len(both)} differ; the text is the same"
    compared(
        "DFlash's drafts without the repair of its keys", "vLLM repaired", "20 prompts", result
    )
