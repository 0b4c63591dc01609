"""What the tests of several processes run in each of them: completions by many drafters.

python -m tests.groups.driver NNODES RANK PORT TARGET DRAFT EXTRACTED CASE ...
"""

import json
import sys
from pathlib import Path

from specjax.engine.connector import CONNECTOR
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.options.structured_outputs import StructuredOutputsParams
from specjax.host import group
from specjax.host.compile_cache import enable_compile_cache

PROMPTS = ["def f(x):", "x = 1\n", "import"]
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 7, "logprobs": 1}


def cases(draft):
    """Yield (name, speculative_config, sampling parameters)."""
    model = {"method": "draft_model", "model": draft, "num_speculative_tokens": 2}
    yield "plain", None, {**SAMPLED, "presence_penalty": 0.3}
    yield "ngram", {"method": "ngram", "num_speculative_tokens": 3}, {"temperature": 0.0}
    yield "suffix", {"method": "suffix", "num_speculative_tokens": 3}, {"temperature": 0.0}
    yield "walk", model, SAMPLED
    yield "rejection", {**model, "draft_sample_method": "probabilistic"}, SAMPLED
    yield "block", {**model, "rejection_sample_method": "block"}, SAMPLED
    tree = {"num_speculative_tokens": 3, "speculative_token_tree": "[(0,), (1,), (0, 0)]"}
    yield "tree", {**model, **tree}, SAMPLED
    choice = StructuredOutputsParams(choice=["def x", "import y"])
    yield "masked", model, {**SAMPLED, "structured_outputs": choice}


def texts(target, draft, devices, names):
    """Return the ids of some cases' completions."""
    found = {}
    for name, config, sampling in cases(draft):
        if name not in names:
            continue
        llm = LLM(target, speculative_config=config, tensor_parallel_size=devices)
        params = SamplingParams(max_tokens=8, **sampling)
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        found[name] = [list(output.outputs[0].token_ids) for output in outputs]
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


def main(nnodes, rank, port, target, draft, folder, *names):
    """Join the others, run the cases, keep the ids."""
    group.join(group.Place(int(nnodes), int(rank), "127.0.0.1", int(port)))
    enable_compile_cache()
    found = texts(target, draft, int(nnodes), names)
    Path(folder, f"ids-{rank}.json").write_text(json.dumps(found))
    extract(target, int(nnodes), folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
