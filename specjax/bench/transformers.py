"""Greedy completions by transformers' ``generate``, in a process of its own.

Told when to run, so that its threads and XLA's do not meet. Its threads wait for each other,
so other work on the machine hurts it more than us: on two busy cores two threads gave 1.7
tokens/s where one gave 15. Trust a comparison only on an idle machine.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specjax.worker import Worker

TIMEOUT = 300.0  # seconds

# Reads the job from its first line; then answers every line with [token ids, seconds].
# An assistant drafts exactly K tokens every round, as ours and vLLM's do.
PEER = """
import json, os, sys, time
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, transformers
job = json.loads(sys.stdin.readline())
torch.set_num_threads(job["threads"])
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
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
    asked = json.loads(line)
    ids = torch.tensor([asked["prompt"]])
    start = time.perf_counter()
    with torch.inference_mode():
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=asked["num_tokens"],
            do_sample=False, **options,
        )
    seconds = time.perf_counter() - start
    print(json.dumps([whole[0, ids.shape[1]:].tolist(), seconds]), flush=True)
"""


Complete = Callable[[Sequence[Sequence[int]], int], tuple[list[list[int]], float]]


@contextmanager
def open_transformers(
    model: Path,
    *,
    threads: int,
    assistant: Path | None = None,
    depth: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, Complete]]:
    """Load a Hugging Face folder; yield transformers' version and ``complete``.

    ``complete(prompts, num_tokens)`` completes prompts of token ids one by one and returns the
    tokens and the seconds. ``assistant`` is a folder whose model drafts ``depth`` tokens per
    round; ``options`` are further arguments of ``generate``; ``threads`` is torch's. Raises
    WorkerFailure where transformers is not installed or fails.
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

        def complete(
            prompts: Sequence[Sequence[int]], num_tokens: int
        ) -> tuple[list[list[int]], float]:
            asked = [{"prompt": list(prompt), "num_tokens": num_tokens} for prompt in prompts]
            answers = [worker.ask(one, timeout=TIMEOUT) for one in asked]
            return [tokens for tokens, _ in answers], sum(seconds for _, seconds in answers)

        yield version, complete
