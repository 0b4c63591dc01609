"""``specjax bench start``: time from the start of a process, or a server, to its first token."""

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from rich.console import Console

from specjax.bench.report import Row, machine_row, print_rows, write_rows, write_section
from specjax.host.compile_cache import VARIABLE
from specjax.host.launch import open_specjax
from specjax.host.markdown import around_section
from specjax.measure.turns import median_in_turns

GOAL = 4.0  # seconds
SERVER_GOALS = {"empty caches": 20.0, "second start": 5.0}  # seconds
CONFIGS = {
    "plain": None,
    "ngram": '{"method": "ngram", "num_speculative_tokens": 4}',
    "draft_model": '{"model": "bundled:draft", "num_speculative_tokens": 4}',
}


def bench_start(
    json_file: Path | None,
    *,
    reps: int = 5,
    readme: Path | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Return rows of the time until ``specjax generate --stream`` prints its first token.

    A first, uncounted run fills the cache of compiled programs. Then those of a server on empty
    caches, and of the next ones, until they have answered. ``readme`` is a Markdown file, in whose
    section "start" to put them as well; ValueError if it has none.
    """
    if readme is not None:
        around_section(readme, "start")
    console = console or Console(highlight=False)
    calls = [lambda config=config: first_token(config) for config in CONFIGS.values()]
    medians = median_in_turns(calls, reps, warm_up=1)
    rows = [machine_row()]
    for method, seconds in zip(CONFIGS, medians, strict=True):
        rows.append(
            Row(
                name=f"process start to first token, {method}",
                value=seconds,
                unit="s",
                goal=f"<= {GOAL:g} s",
                met=seconds <= GOAL,
            )
        )
    can_serve = importlib.util.find_spec("uvicorn") is not None
    if not can_serve:
        console.print("the start of a server needs: pip install 'specjax[serve]'")
    with tempfile.TemporaryDirectory() as folder:
        counts = {"empty caches": 1, "second start": reps}
        for name, goal in SERVER_GOALS.items() if can_serve else ():
            (seconds,) = median_in_turns([lambda: first_answer(folder)], counts[name])
            rows.append(
                Row(
                    name=f"server start to first answer, {name}",
                    value=seconds,
                    unit="s",
                    goal=f"<= {goal:g} s",
                    met=seconds <= goal,
                )
            )
    print_rows(rows, console)
    if json_file is not None:
        write_rows(rows, json_file)
    if readme is not None:
        note = (
            f"The bundled model; medians of {reps} runs, those of processes interleaved, compiled "
            "programs and Python's bytecode kept (PYTHONDONTWRITEBYTECODE=1 adds half a second). "
            "The server's start on an empty folder of compiled programs is one run."
        )
        write_section(rows, readme, "start", [note])
    return rows


def first_token(config: str | None) -> float:
    """Return the seconds from process start to the first byte on stdout."""
    command = [sys.executable, "-m", "specjax", "generate", "--stream", "--max-tokens", "8"]
    command += ["--prompt", "def add(a, b):"]
    command += [] if config is None else ["--speculative-config", config]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.stdout.read()
    if not first or process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with code {process.returncode}")
    return seconds


def first_answer(folder: str) -> float:
    """Return the seconds until a server with this folder of compiled programs has answered."""
    start = time.perf_counter()
    with open_specjax("bundled", [], compile_all=False, environment={VARIABLE: folder}) as url:
        asked = {"model": "bundled", "prompt": "def add(a, b):", "max_tokens": 8}
        request = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=60).close()
        return time.perf_counter() - start
