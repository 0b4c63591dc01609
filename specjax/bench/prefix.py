"""``specjax bench prefix``: the time to the first token of a chat's second turn.

The second prompt begins with all of the first. A service reads what is new; one without a prefix
cache reads all of it.
"""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from specjax.bench.report import Row, compare, machine_row, print_rows, write_rows, write_section
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.service import Service
from specjax.host.markdown import around_section

SHARED, NEW = 1500, 40  # tokens of the first turn, and that the second adds
GOAL = 0.2
BYTES = 2**30
GREEDY = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


def bench_prefix(
    model: str,
    speculative_config: Any,
    json_file: Path | None,
    *,
    reps: int = 9,
    readme: Path | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write the times. Raises ValueError for a bad model or config.

    ``readme`` is a Markdown file, in whose section "prefix" to put them as well.
    """
    if readme is not None:
        around_section(readme, "prefix")
    llm = LLM(model, speculative_config=speculative_config, max_num_seqs=1)
    if llm.core.max_model_len < SHARED + NEW + 1:
        raise ValueError(
            f"bench prefix reads {SHARED + NEW} tokens, and {model} has room for "
            f"{llm.core.max_model_len}: take a model with more."
        )
    rng = random.Random(0)
    size = llm.core.tokenizer.vocab_size
    chats = [[rng.randrange(size) for _ in range(SHARED + NEW)] for _ in range(reps + 1)]
    rows = [machine_row()]
    for name, most_bytes in (("no prefix cache", 0), ("prefix cache", BYTES)):
        first, second = time_turns(llm, chats, most_bytes)
        rows.append(Row(name=f"{name}: first turn, {SHARED} tokens", value=1e3 * first, unit="ms"))
        goal = GOAL if most_bytes else None
        told = f"{name}: second turn, {NEW} more", 1e3 * second, "ms"
        rows.append(compare(*told, 1e3 * first, "the first", at_most=goal))
    print_rows(rows, console or Console(highlight=False))
    if json_file is not None:
        write_rows(rows, json_file)
    if readme is not None:
        note = (
            f"{model}, drafted with `{json.dumps(speculative_config)}`: {SHARED} random tokens, "
            f"then those and {NEW} more; medians of {reps} chats; no server between."
        )
        write_section(rows, readme, "prefix", [note])
    return rows


def time_turns(llm: LLM, chats: Sequence[list[int]], most_bytes: int) -> tuple[float, float]:
    """Return the median seconds to the first token of first and second turns.

    The first chat is not counted: what is not compiled yet is compiled for it.
    """
    service = Service(llm.core, max_waiting=1, prefix_cache_bytes=most_bytes)
    try:
        service.warm_up()
        times = [[first_token(service, chat[:size]) for size in (SHARED, None)] for chat in chats]
    finally:
        service.close(drain=False)
    first, second = zip(*times[1:], strict=True)
    return statistics.median(first), statistics.median(second)


def first_token(service: Service, prompt: list[int]) -> float:
    """Return the seconds until a prompt's first token."""

    async def ask() -> float:
        start = time.perf_counter()
        (stream,) = service.submit_ids(prompt, GREEDY)
        await stream.ready()
        seconds = time.perf_counter() - start
        async for _ in stream:
            pass
        return seconds

    return asyncio.run(ask())
