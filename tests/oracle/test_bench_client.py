"""``vllm bench serve``, vLLM's own load client, against our server: no failure, and acceptance."""

import json
import os
import subprocess

import pytest

from specjax.bundled import BUNDLED, prompts
from specjax.host.launch import open_specjax
from specjax.oracle.ask import PLUGIN
from specjax.oracle.environment import OracleMissing, interpreter

NUM_REQUESTS, CONFIG = 24, {"model": "bundled:draft", "num_speculative_tokens": 3}
RANDOM = ("--dataset-name", "random", "--random-input-len", "24", "--random-output-len", "16")
KINDS = {  # dataset -> client's arguments, and what a greedy client asks besides
    "random": ("openai", "/v1/completions", RANDOM),
    "sharegpt": ("openai-chat", "/v1/chat/completions", ("--dataset-name", "sharegpt")),
}


@pytest.fixture(scope="module")
def vllm():
    """Return how to start vLLM's command line."""
    try:
        python = interpreter()
    except OracleMissing as missing:
        pytest.skip(str(missing))
    return [str(python.with_name("vllm")), "bench", "serve"]


@pytest.fixture(scope="module")
def url():
    given = ("--speculative-config", json.dumps(CONFIG), "--max-model-len", "512")
    with open_specjax("bundled", [*given, "--max-num-seqs", "8"]) as address:
        yield address


@pytest.mark.oracle
@pytest.mark.parametrize("dataset", KINDS)
def test_vllms_load_client_finds_no_fault(dataset, vllm, url, tmp_path, compared):
    backend, endpoint, arguments = KINDS[dataset]
    if dataset == "sharegpt":
        turns = [
            {"conversations": [{"value": p["turns"][0]}, {"value": "x = 1\n" * 6}]}
            for p in prompts()
        ]
        (tmp_path / "sharegpt.json").write_text(json.dumps(turns))
        arguments += ("--dataset-path", str(tmp_path / "sharegpt.json"))
    command = [
        *(*vllm, "--backend", backend, "--endpoint", endpoint, "--base-url", url),
        *("--model", "bundled", "--tokenizer", str(BUNDLED["bundled"]), *arguments),
        *("--num-prompts", str(NUM_REQUESTS), "--max-concurrency", "8", "--temperature", "0"),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "said.json"),
        *("--ignore-eos", "--disable-tqdm"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN), "HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads((tmp_path / "said.json").read_text())
    assert (said["completed"], said["failed"]) == (NUM_REQUESTS, 0)
    assert said["total_output_tokens"] > 5 * NUM_REQUESTS
    assert said["spec_decode_num_drafts"] > 0
    assert said["spec_decode_acceptance_rate"] > 5  # percent
    compared(
        f"specjax serve under vllm bench serve, {dataset}",
        "its own count of failures",
        f"{NUM_REQUESTS} requests, {said['total_output_tokens']} tokens",
        f"0 failed; {said['spec_decode_acceptance_rate']:.0f}% accepted",
    )
