"""specjax as one engine among others: in this process, or in one of its own.

Run as a module it reads ``LLM``'s arguments from the first line of stdin, as JSON, and answers
every further line, {"prompts", "num_tokens"}, as the other engines' processes do.
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
from specjax.bench.turns import Answer, Complete
from specjax.compile_cache import enable_compile_cache
from specjax.engine.llm import LLM
from specjax.engine.params import SamplingParams
from specjax.worker import Worker

TIMEOUT = 1200.0  # seconds


def completer(llm: LLM) -> Complete:
    """Complete prompts of token ids side by side, greedily, without text."""

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
    """Load specjax in a process of its own; yield its version and ``complete``.

    ``options`` are further arguments of ``LLM``. Raises WorkerFailure.
    """
    command = [sys.executable, "-m", "specjax.bench.ours"]
    with Worker("specjax", command) as worker:
        version = worker.ask({"model": str(model.resolve()), **options}, timeout=TIMEOUT)
        yield version, asker(worker)


def asker(worker: Worker) -> Complete:
    """Complete by asking a process."""

    def complete(prompts: Sequence[Sequence[int]], num_tokens: int) -> Answer:
        asked = {"prompts": [list(prompt) for prompt in prompts], "num_tokens": num_tokens}
        return to_answer(worker.ask(asked, timeout=TIMEOUT))

    return complete


def to_answer(said: Mapping[str, Any]) -> Answer:
    """Read the answer of a process."""
    return Answer(said["token_ids"], said["seconds"], said["peak_bytes"])


def peak_bytes() -> int | None:
    """Return the most memory this process has had resident; None where nobody knows."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM:"))
    return int(peak) * 1024


def main() -> None:
    """Load, then complete whatever is asked for."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # whatever is printed is not an answer

        def say(answer: Any) -> None:
            print(json.dumps(answer), file=answers, flush=True)

        job = json.loads(sys.stdin.readline())
        enable_compile_cache()
        complete: Callable = completer(LLM(**job))
        say(__version__)
        for line in sys.stdin:
            tokens, seconds, peak = complete(**json.loads(line))
            say({"token_ids": tokens, "seconds": seconds, "peak_bytes": peak})


if __name__ == "__main__":
    main()
