"""``specjax bench adaptive``: adaptive K beside drafting always and never, while the load changes.

Each service goes through the same phases, each with a number of clients that send one request after
the other. The goal of every phase is a share of the better of on and off.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from specjax.bench.prompts import Prompt, fitting
from specjax.bench.report import Row, compare, machine_row, print_rows, write_rows
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.service import Service
from specjax.measure.load import closed_loop
from specjax.measure.turns import take_turns

PHASES = (1, 8, 2, 16, 4, 32, 1)  # clients
NUM_TOKENS = 64  # of a completion
GOAL = 0.97


def bench_adaptive(
    model: str,
    speculative_config: dict[str, Any],
    json_file: Path | None,
    *,
    phases: Sequence[int] = PHASES,
    requests_per_client: int = 8,
    reps: int = 3,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write the tokens per second of every phase, and of all together.

    Args:
        model: the target.
        speculative_config: with ``adaptive``; "on" is the same without it.
        json_file: where to write the rows.
        phases: the numbers of clients, one after the other.
        requests_per_client: in each phase.
        reps: how often each service goes through the phases, in turns; medians are reported.
        console: where to print.

    Raises:
        ValueError: a bad model or config, or one without ``adaptive``.
    """
    if speculative_config.get("adaptive") is None:
        raise ValueError(
            "bench adaptive compares adaptive K with a fixed one: add "
            '"adaptive": "throughput_aware" to the speculative_config.'
        )
    configs = {
        "off": None,
        "on": {key: one for key, one in speculative_config.items() if key != "adaptive"},
        "adaptive": speculative_config,
    }
    services = {}
    for name, config in configs.items():
        llm = LLM(model, speculative_config=config, max_num_seqs=max(phases))
        services[name] = Service(llm.core, max_waiting=1)
        services[name].warm_up()
    chosen = fitting(llm, NUM_TOKENS)
    run = partial(run_phases, prompts=chosen, phases=phases, requests=requests_per_client)
    try:
        calls = [partial(run, service) for service in services.values()]
        found = dict(zip(services, take_turns(calls, reps, warm_up=1), strict=True))
    finally:
        for service in services.values():
            service.close(drain=False)
    rows = [machine_row()]
    counts = [clients * requests_per_client * NUM_TOKENS for clients in phases]
    for i, clients in enumerate(phases):
        rates = {
            name: counts[i] / statistics.median(one[i] for one in own)
            for name, own in found.items()
        }
        rows += compared(f"phase {i + 1}, {clients} clients", rates)
    totals = {
        name: sum(counts) / statistics.median(sum(one) for one in own)
        for name, own in found.items()
    }
    rows += compared("all phases", totals)
    print_rows(rows, console or Console(highlight=False))
    if json_file is not None:
        write_rows(rows, json_file)
    return rows


def compared(name: str, rates: dict[str, float]) -> list[Row]:
    """Return the rows of a phase: tokens per second off, on, and adaptive beside the better."""
    rows = [Row(name=f"{name}: {arm}", value=rates[arm], unit="tokens/s") for arm in ("off", "on")]
    better = max(("off", "on"), key=lambda arm: rates[arm])
    told = f"{name}: adaptive", rates["adaptive"], "tokens/s"
    return [*rows, compare(*told, rates[better], better, at_least=GOAL)]


def run_phases(
    service: Service, prompts: Sequence[Prompt], phases: Sequence[int], requests: int
) -> list[float]:
    """Return the seconds that each phase took."""

    async def send(item: tuple[int, Prompt]) -> None:
        seed, prompt = item
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, seed=seed)
        (stream,) = service.submit_ids(prompt.tokens, params)
        async for _ in stream:
            pass

    async def run() -> list[float]:
        seconds = []
        for clients in phases:
            items = [(i, prompts[i % len(prompts)]) for i in range(clients * requests)]
            start = time.perf_counter()
            await closed_loop(send, items, clients)
            seconds.append(time.perf_counter() - start)
        return seconds

    return asyncio.run(run())
