"""Plain greedy decoding against transformers' ``generate``: same weights, same threads.

transformers runs in a process of its own, told when to run, so that its threads and XLA's do
not meet. Its threads wait for each other, so other work on the machine hurts it more than us:
on two busy cores two threads gave 1.7 tokens/s where one gave 15. Trust this row only on an
idle machine.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from specjax.bench.plan import Setting, interleave
from specjax.bench.report import Row, compare, num_cores
from specjax.drafters.none import none
from specjax.engine import loop
from specjax.engine.params import SamplingParams
from specjax.engine.rows import Request
from specjax.models.build import build_target
from specjax.types import Engine, Params, PyTree
from specjax.verify.walk import walk
from specjax.weights.save import save_model

# Reads the job from its first line; then answers every line with [seconds, tokens].
PEER = """
import json, os, sys, time
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, transformers
job = json.loads(sys.stdin.readline())
torch.set_num_threads(job["threads"])
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
model = transformers.AutoModelForCausalLM.from_pretrained(job["folder"], dtype=torch.float32).eval()
model.generation_config.eos_token_id = None
ids = torch.tensor([job["prompt"]])
print(json.dumps(transformers.__version__), flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    with torch.inference_mode():
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=job["num_tokens"],
            do_sample=False,
        )
    said = time.perf_counter() - start, whole[0, ids.shape[1]:].tolist()
    print(json.dumps(said), flush=True)
"""
PAUSE = 0.1  # seconds between turns: the other's threads may still spin


def generate_rows(
    setting: Setting, weights: PyTree, reps: int, say: Callable[[str], None]
) -> list[Row]:
    """Report tokens per second of both, reading the prompt included, and whether they agree."""
    prompt = np.random.default_rng(1).integers(0, setting.config.vocab_size, setting.context)
    said: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), setting.config, weights, dtype="float32")
        job = {
            "folder": folder,
            "prompt": prompt.tolist(),
            "num_tokens": setting.new_tokens,
            "threads": num_cores(),
        }
        peer = subprocess.Popen(
            [sys.executable, "-c", PEER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

        def ask(line: str):
            assert peer.stdin is not None
            assert peer.stdout is not None
            peer.stdin.write(line + "\n")
            peer.stdin.flush()
            return json.loads(peer.stdout.readline())

        def theirs() -> float:
            time.sleep(PAUSE)
            seconds, said["theirs"] = ask("")
            return seconds

        def ours() -> float:
            time.sleep(PAUSE)
            start = time.perf_counter()
            said["ours"] = complete(setting, weights, prompt.tolist())
            return time.perf_counter() - start

        with peer:
            try:
                version = ask(json.dumps(job))
            except (BrokenPipeError, json.JSONDecodeError):
                say("transformers: skipped, it does not run here; pip install 'specjax[dev]'")
                return []
            interleave([ours, theirs], 1)
            mine, other = interleave([ours, theirs], reps)
    num_tokens = setting.new_tokens
    pairs = zip(said["ours"], said["theirs"], strict=True)
    agreed = next((i for i, (a, b) in enumerate(pairs) if a != b), num_tokens)
    name = f"plain generate, {setting.context} + {num_tokens} tokens"
    speed, their_speed = num_tokens / mine, num_tokens / other
    against = f"transformers {version}"
    return [
        compare(name, speed, "tokens/s", their_speed, against, at_least=1.6),
        compare("first tokens equal to transformers'", agreed, "tokens", num_tokens, "all"),
    ]


def complete(setting: Setting, weights: PyTree, prompt: list[int]) -> list[int]:
    """Complete the prompt plainly and greedily, as `LLM` would."""
    engine = Engine(build_target(setting.config), none, walk, window=0)
    sampling = SamplingParams(temperature=0.0, max_tokens=setting.new_tokens, ignore_eos=True)
    limit = setting.context + setting.new_tokens
    request = Request(tuple(prompt), sampling, 0, limit, ())
    results = list(loop.run(engine, Params(weights, None), [request], max_num_seqs=1))
    return results[-1].tokens
