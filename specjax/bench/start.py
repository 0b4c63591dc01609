"""``specjax bench start``: from the start of a process to its first token."""

import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from specjax.bench.plan import interleave
from specjax.bench.report import Row, machine_row, print_rows, write_rows

GOAL = 4.0  # seconds
CONFIGS = {
    "plain": None,
    "ngram": '{"method": "ngram", "num_speculative_tokens": 4}',
    "draft_model": '{"model": "bundled:draft", "num_speculative_tokens": 4}',
}


def bench_start(
    json_file: Path | None, *, reps: int = 5, console: Console | None = None
) -> list[Row]:
    """Time ``specjax generate --stream`` of the bundled model until it has written something.

    Its compiled programs are in the cache: a first run, not counted, puts them there.
    """
    console = console or Console(highlight=False)
    calls = [lambda config=config: first_token(config) for config in CONFIGS.values()]
    interleave(calls, 1)
    rows = [machine_row()]
    for method, seconds in zip(CONFIGS, interleave(calls, reps), strict=True):
        rows.append(
            Row(
                name=f"process start to first token, {method}",
                value=seconds,
                unit="s",
                goal=f"<= {GOAL:g} s",
                met=seconds <= GOAL,
            )
        )
    print_rows(rows, console)
    if json_file is not None:
        write_rows(rows, json_file)
    return rows


def first_token(config: str | None) -> float:
    """Return the seconds until the first byte on stdout; the process may then finish."""
    command = [sys.executable, "-m", "specjax", "generate", "--stream", "--max-tokens", "8"]
    command += ["--prompt", "def add(a, b):"]
    command += [] if config is None else ["--speculative-config", config]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        said = process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.stdout.read()
    if not said or process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with code {process.returncode}")
    return seconds
