"""specjax as one of the compared engines: in this process, or in a separate one.

Run as a module, it reads ``LLM``'s arguments as JSON from the first line of stdin and answers every
further line, {"prompts", "num_tokens"}, like the other engines' processes.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specjax import __version__
from specjax.bench.arms import Answer, Complete
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.host.compile_cache import enable_compile_cache
from specjax.host.machine import peak_bytes
from specjax.host.worker import Worker

TIMEOUT = 1200.0  # seconds


def completer(llm: LLM) -> Complete:
    """Return greedy completions of a batch of token-id prompts, without detokenizing."""

    def complete(prompts: Sequence[Sequence[int]], num_tokens: int) -> Answer:
        params = SamplingParams(
            temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        asked: Any = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        start = time.perf_counter()
        done = llm.generate(asked, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return Answer([list(one.outputs[0].token_ids) for one in done], seconds, peak_bytes())

    return complete


@contextmanager
def open_ours(model: Path, **options: Any) -> Iterator[tuple[str, Complete]]:
    """Yield specjax's version and ``complete``, loaded in a separate process.

    ``options`` are further arguments of ``LLM``. Raises WorkerFailure.
    """
    command = [sys.executable, "-m", "specjax.bench.ours"]
    with Worker("specjax", command) as worker:
        version = worker.ask({"model": str(model.resolve()), **options}, timeout=TIMEOUT)
        yield version, asker(worker)


def asker(worker: Worker) -> Complete:
    """Return the completions of a worker process."""

    def complete(prompts: Sequence[Sequence[int]], num_tokens: int) -> Answer:
        asked = {"prompts": [list(prompt) for prompt in prompts], "num_tokens": num_tokens}
        return to_answer(worker.ask(asked, timeout=TIMEOUT))

    return complete


def to_answer(reply: Mapping[str, Any]) -> Answer:
    """Return a worker's reply as an ``Answer``."""
    return Answer(reply["token_ids"], reply["seconds"], reply["peak_bytes"])


def main() -> None:
    """Load the model, then complete the prompts of each request."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # whatever is printed is not an answer

        def reply(answer: Any) -> None:
            print(json.dumps(answer), file=answers, flush=True)

        job = json.loads(sys.stdin.readline())
        enable_compile_cache()
        complete: Callable = completer(LLM(**job))
        reply(__version__)
        for line in sys.stdin:
            tokens, seconds, peak = complete(**json.loads(line))
            reply({"token_ids": tokens, "seconds": seconds, "peak_bytes": peak})


if __name__ == "__main__":
    main()
