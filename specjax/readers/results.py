"""Reads a load generator's result: whose it is, and which of the runs in it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specjax.readers.aisbench import is_aisbench, read_aisbench
from specjax.readers.guidellm import is_guidellm, read_guidellm
from specjax.readers.observation import Observation
from specjax.readers.vllm_bench import is_bench, read_bench

TOOLS = "vllm bench serve, sglang.bench_serving, GuideLLM, AISBench"


def read_result(path: Path, run: int | None = None) -> Observation:
    """Return what a result says.

    Args:
        path: a JSON file, or SGLang's JSON lines (one per run).
        run: which of several runs in it, from 1.

    Raises:
        ValueError: none of the known tools' results, or several runs and ``run`` is None.
        OSError: no such file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text; results of {TOOLS} are JSON.") from None
    saved = parse(text)
    if not saved:
        begin = text.strip()[:60]
        raise ValueError(f"{path} is no JSON result of {TOOLS}; it begins with {begin!r}.")
    runs: list[Callable[[], Observation]] = []
    for one in saved:
        if is_guidellm(one):
            runs += [lambda of=of: read_guidellm(of, str(path)) for of in one["benchmarks"]]
        elif is_bench(one):
            runs.append(lambda of=one: read_bench(of, str(path)))
        elif is_aisbench(one):
            runs.append(lambda of=one: read_aisbench(of, path))
        else:
            keys = ", ".join(list(one)[:5]) or "nothing"
            raise ValueError(f"{path} is no result of {TOOLS}: it holds {keys}.")
    if run is None and len(runs) == 1:
        run = 1
    if run is None or not 1 <= run <= len(runs):
        loads = ", ".join(f"{i}: {describe(read())}" for i, read in enumerate(runs, start=1))
        raise ValueError(f"{path} holds {len(runs)} runs ({loads}): choose one with --run.")
    return runs[run - 1]()


def parse(text: str) -> Sequence[dict[str, Any]]:
    """Return the objects in a JSON file or in JSON lines; none for another text."""
    try:
        whole = json.loads(text)
    except ValueError:
        try:
            whole = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            return []
    found = whole if isinstance(whole, list) else [whole]
    return found if found and all(isinstance(one, dict) for one in found) else []


def describe(one: Observation) -> str:
    """Return a run's load in words: its mean number of running requests."""
    return "?" if one.running is None else f"{one.running:.3g} requests side by side"
