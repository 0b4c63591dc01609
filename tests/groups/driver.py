"""What the tests of several processes run in each of them: completions by many drafters.

python -m tests.groups.driver NNODES RANK PORT TARGET DRAFT HEADS FOLDER CASE ...
"""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

from specjax.engine.connector import CONNECTOR
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.options.structured_outputs import StructuredOutputsParams
from specjax.host import group
from specjax.host.compile_cache import enable_compile_cache
from specjax.models.config import BlockConfig, FeatureConfig, MedusaConfig, SpeculatorConfig
from specjax.train.head_init import first_weights
from specjax.weights.hf_config import read_config
from specjax.weights.load import load_params
from specjax.weights.save_heads import save_head

PROMPTS = ["def f(x):", "x = 1\n", "import"]
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 7, "logprobs": 1}
HEADS = ("eagle", "eagle3", "peagle", "mtp", "medusa", "mlp_speculator", "dflash", "dspark")
MASK = 5  # the token that stands for one to be drafted


def write_heads(target, draft, folder):
    """Write untrained heads of every kind and a PARD model, each into a folder of its own."""
    facts, _ = read_config(target, dtype="float32")
    weights, size = load_params(target, facts), facts.hidden_size
    block = facts.block(0)
    layered = {"block": block, "target_size": size}
    llama = {**layered, "block": dataclasses.replace(block, qk_norm=False, qkv_bias=False)}
    sizes = {"hidden_size": size, "vocab_size": facts.vocab_size}
    tapped = {"taps": (0, 1, 2)}
    at_once = {"mask_token_id": MASK, "causal": (False,), "sliding_windows": (None,)}
    confident = {"sample_from_anchor": True, "markov_rank": 8, "confidence": "markov"}
    configs = {
        "eagle": FeatureConfig(kind="eagle", **llama),
        "eagle3": FeatureConfig(kind="eagle3", **llama, **tapped),
        "peagle": FeatureConfig(kind="eagle3", **llama, **tapped, mask_token_id=MASK),
        "mtp": FeatureConfig(kind="mtp", **layered, hidden_first=True, taps=(facts.num_layers,)),
        "medusa": MedusaConfig(num_heads=3, num_layers=1, **sizes),
        "mlp_speculator": SpeculatorConfig(num_stages=3, inner_size=24, **sizes),
        "dflash": BlockConfig(kind="dflash", **layered, **tapped, **at_once),
        "dspark": BlockConfig(kind="dspark", **layered, **tapped, **at_once, **confident),
    }
    for kind, config in configs.items():
        Path(folder, kind).mkdir(parents=True)
        own = first_weights(config, facts, weights, None, seed=3)
        save_head(Path(folder, kind), kind, config, own)
    shutil.copytree(draft, pard := Path(folder, "pard"))
    written = json.loads((pard / "config.json").read_text())
    (pard / "config.json").write_text(json.dumps({**written, "pard_token": MASK}))


def cases(draft, heads):
    """Yield (name, speculative_config, the sampling parameters of several requests)."""
    both = (GREEDY, SAMPLED)
    model = {"method": "draft_model", "model": draft, "num_speculative_tokens": 2}
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    yield "plain", None, ({**SAMPLED, "presence_penalty": 0.3}, GREEDY)
    yield "ngram", ngram, both
    yield "suffix", {"method": "suffix", "num_speculative_tokens": 3}, both
    yield "walk", model, both
    yield "rejection", {**model, "draft_sample_method": "probabilistic"}, both
    yield "block", {**model, "rejection_sample_method": "block"}, both
    tree = {"num_speculative_tokens": 3, "speculative_token_tree": "[(0,), (1,), (0, 0)]"}
    yield "tree", {**model, **tree}, both
    yield "rejection of trees", {**model, **tree, "draft_sample_method": "probabilistic"}, both
    grown = {"num_speculative_tokens": 4, "tree": {"depth": 2, "top_k": 2, "num_nodes": 4}}
    yield "grown", {**model, **grown}, both
    yield "fallback", {**ngram, "fallback": model}, both
    yield "drafted for", {**model, "speculative_config": ngram}, both
    choice = StructuredOutputsParams(choice=["def x", "import y"])
    yield "masked", model, ({**SAMPLED, "structured_outputs": choice},)
    at_once = {"parallel_drafting": True, "num_speculative_tokens": 3}
    yield "pard", {"method": "draft_model", "model": str(Path(heads, "pard")), **at_once}, both
    for kind in HEADS:
        one = {"method": "eagle3", **at_once} if kind == "peagle" else {"method": kind}
        folder = str(Path(heads, kind))
        yield kind, {**one, "model": folder, "num_speculative_tokens": 3}, both


def texts(target, draft, heads, devices, names):
    """Return the ids of some cases' completions."""
    found = {}
    for case, config, requests in cases(draft, heads):
        if case not in names:
            continue
        llm = LLM(target, speculative_config=config, tensor_parallel_size=devices)
        for i, sampling in enumerate(requests):
            params = SamplingParams(max_tokens=8, **sampling)
            outputs = llm.generate(PROMPTS, params, use_tqdm=False)
            found[f"{case} {i}"] = [list(output.outputs[0].token_ids) for output in outputs]
    return found


def extract(target, devices, folder):
    """Return the hidden states' file of one prompt."""
    config = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}},
    }
    extra = {"shared_storage_path": folder}
    where = {"kv_connector": CONNECTOR, "kv_role": "kv_producer"}
    llm = LLM(
        target,
        speculative_config=config,
        kv_transfer_config={**where, "kv_connector_extra_config": extra},
        tensor_parallel_size=devices,
    )
    params = SamplingParams(temperature=0.0, max_tokens=1)
    (output,) = llm.generate(PROMPTS[0], params, use_tqdm=False)
    return output.kv_transfer_params["hidden_states_path"]


def main(nnodes, rank, port, target, draft, heads, folder, *names):
    """Join the others, run the cases, keep the ids."""
    group.join(group.Place(int(nnodes), int(rank), "127.0.0.1", int(port)))
    enable_compile_cache()
    found = texts(target, draft, heads, int(nnodes), names)
    Path(folder, f"ids-{rank}.json").write_text(json.dumps(found))
    extract(target, int(nnodes), folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
