"""`vllm serve`: the same text and counters over HTTP as offline, for our server to match."""

import json

from specjax import LLM, SamplingParams
from tests.oracle.prompts import read

NUM_PROMPTS, NUM_TOKENS, MAX_MODEL_LEN = 4, 32, 512
CONFIG = {
    "method": "ngram",
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
    "num_speculative_tokens": 3,
}


def test_the_server_says_and_counts_what_we_do(vllm, compared):
    llm = LLM("bundled", speculative_config=CONFIG, max_model_len=MAX_MODEL_LEN)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    mine = llm.generate(read()[:NUM_PROMPTS], params, use_tqdm=False)
    bodies = [
        {
            "model": "bundled",
            "prompt": list(output.prompt_token_ids),
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        for output in mine
    ]
    arguments = [
        *("--served-model-name", "bundled", "--max-model-len", str(MAX_MODEL_LEN)),
        *("--speculative-config", json.dumps(CONFIG)),
        *("--per-request-spec-decode-metrics", "detailed", "--max-num-seqs", "8"),
    ]
    requests = [{"path": "/v1/completions", "body": body} for body in bodies]
    requests += [{"path": "/metrics"}, {"path": "/v1/models"}]

    def keep(answer: dict) -> dict:
        *completions, metrics, models = answer["responses"]
        counters = [line for line in metrics["text"].splitlines() if "spec_decode" in line]
        counters = [line for line in counters if "_created" not in line]
        return {
            "completions": [json.loads(one["text"]) for one in completions],
            "counters": [line for line in counters if not line.startswith("#")],
            "status": [metrics["status"], models["status"]],
        }

    job = {"kind": "serve", "model": "bundled", "arguments": arguments, "requests": requests}
    theirs = vllm("server_ngram", job, keep)
    assert theirs["status"] == [200, 200]
    for one, other in zip(mine, theirs["completions"], strict=True):
        (choice,) = other["choices"]
        assert choice["token_ids"] == list(one.outputs[0].token_ids)
        assert choice["text"] == one.outputs[0].text
        found = other["metrics"]["speculative_decoding"]
        expected = one.outputs[0].spec_decode_metrics
        assert expected is not None
        got = expected.to_dict()
        assert {name: found[name] for name in got} == got
    for metric in llm.get_metrics():
        values = getattr(metric, "values", None) or [metric.value]
        lines = [line for line in theirs["counters"] if line.startswith(f"{metric.name}_total{{")]
        assert [float(line.split()[-1]) for line in lines] == list(values), metric.name
    compared(
        "vllm serve: text, token ids, per-request metrics, /metrics",
        "our offline LLM, ngram",
        f"{NUM_PROMPTS} requests x {NUM_TOKENS} tokens",
        "equal",
    )
