"""Greedy completions by transformers' ``generate``, in a separate process.

It runs only during its turns, so that its threads and XLA's do not compete. Its threads synchronise
often, so other load on the machine slows it down more than specjax: on two busy cores two threads
gave 1.7 tokens/s where one gave 15. Compare on an idle machine only.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specjax.bench.arms import Complete
from specjax.bench.ours import TIMEOUT, asker
from specjax.host.worker import Worker

# Reads the job from its first line; then completes the prompts of every line, one by one. Weights
# are loaded as transformers does by default, in the checkpoint's own dtype. An assistant drafts
# exactly K tokens every round, as ours and vLLM's do.
PEER = """
import json, os, sys, time
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, transformers
job = json.loads(sys.stdin.readline())
torch.set_num_threads(job["threads"])
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config.eos_token_id = None
    return model

model, options = load(job["model"]), dict(job["options"])
if job["assistant"]:
    assistant = options["assistant_model"] = load(job["assistant"])
    assistant.generation_config.num_assistant_tokens = job["depth"]
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
print(json.dumps(transformers.__version__), flush=True)
for line in sys.stdin:
    asked, seconds, tokens = json.loads(line), 0.0, []
    for prompt in asked["prompts"]:
        ids = torch.tensor([prompt])
        start = time.perf_counter()
        with torch.inference_mode():
            whole = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=asked["num_tokens"],
                do_sample=False, **options,
            )
        seconds += time.perf_counter() - start
        tokens.append(whole[0, ids.shape[1]:].tolist())
    status = open("/proc/self/status").read() if os.path.exists("/proc/self/status") else ""
    peak = [int(line.split()[1]) * 1024 for line in status.splitlines() if "VmHWM" in line]
    answer = {"token_ids": tokens, "seconds": seconds, "peak_bytes": (peak or [None])[0]}
    print(json.dumps(answer), flush=True)
"""


@contextmanager
def open_transformers(
    model: Path,
    *,
    threads: int,
    assistant: Path | None = None,
    depth: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, Complete]]:
    """Yield transformers' version and ``complete`` for a Hugging Face folder.

    Prompts of token ids are completed one by one. ``assistant`` is a folder whose model drafts
    ``depth`` tokens per round; ``options`` are further arguments of ``generate``; ``threads`` is
    torch's. Raises WorkerFailure where transformers is not installed or fails.
    """
    job = {
        "model": str(model.resolve()),
        "assistant": assistant and str(assistant.resolve()),
        "depth": depth,
        "options": dict(options or {}),
        "threads": threads,
    }
    with Worker("transformers", [sys.executable, "-c", PEER]) as worker:
        version = worker.ask(job, timeout=TIMEOUT)
        yield version, asker(worker)
