"""``specjax bench adaptive``: adaptive K beside drafting always and never, while the load changes.

The services go through the same phases, each with a number of clients that send one request after
the other, and take turns phase by phase. Every phase has as many requests, so that each lasts some
seconds. The goal of a phase is a share of the better of on and off.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console

from specjax.bench.prompts import Prompt, fitting
from specjax.bench.report import Row, compare, machine_row, print_rows, write_rows, write_section
from specjax.bench.services import open_services
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.service import Service
from specjax.host.markdown import around_section, picture
from specjax.measure.load import closed_loop
from specjax.measure.turns import take_turns
from specjax.viz.figure import check_picture, save_figure
from specjax.viz.phases import phases as draw_phases

ARMS = ("off", "on", "adaptive")
PHASES = (1, 8, 32, 4, 16, 1)  # clients
NUM_TOKENS = 64  # of a completion
GOAL = 0.97
SECTION = "adaptive"


def bench_adaptive(
    model: str,
    speculative_config: dict[str, Any],
    json_file: Path | None,
    *,
    phases: Sequence[int] = PHASES,
    requests: int = 96,
    reps: int = 3,
    max_model_len: int = 256,
    readme: Path | None = None,
    image: Path | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Return, print and write the tokens per second of every phase, and of all together.

    Args:
        model: the target.
        speculative_config: with ``adaptive``; "on" is the same without it.
        json_file: where to write the rows.
        phases: the numbers of clients, one after the other.
        requests: of each phase, by all clients together.
        reps: how often each service goes through the phases; medians are reported.
        max_model_len: prompt and output together; longer prompts are left out.
        readme: a Markdown file, in whose section "adaptive" to put the table and the picture.
        image: where to draw the phases.
        console: where to print.

    Raises:
        ValueError: a bad model or config, one without ``adaptive``, or fewer requests than clients.
    """
    if speculative_config.get("adaptive") is None:
        raise ValueError(
            "bench adaptive compares adaptive K with a fixed one: add "
            '"adaptive": "throughput_aware" to the speculative_config.'
        )
    if requests < max(phases):
        raise ValueError(f"{requests} requests do not occupy {max(phases)} clients.")
    if readme is not None:
        around_section(readme, SECTION)
    if image is not None:
        check_picture(image)
    fixed = {key: one for key, one in speculative_config.items() if key != "adaptive"}
    configs = dict(zip(ARMS, (None, fixed, speculative_config), strict=True))
    shape: dict[str, Any] = {"max_num_seqs": max(phases), "max_model_len": max_model_len}
    models = {name: LLM(model, speculative_config=one, **shape) for name, one in configs.items()}
    prompts = fitting(models["off"], NUM_TOKENS)
    with open_services(models, max_waiting=1) as services:
        for service in services.values():
            service.warm_up()
        calls = [
            partial(run_phase, service, prompts, clients, requests)
            for clients in phases
            for service in services.values()
        ]
        found = take_turns(calls, reps, warm_up=1)
    rows = [machine_row()]
    number = requests * NUM_TOKENS
    seconds = np.reshape(found, (len(phases), len(ARMS), reps))
    for i, (clients, one) in enumerate(zip(phases, seconds, strict=True)):
        rows += compared(f"phase {i + 1}, {clients} clients", number, one)
    rows += compared("all phases", number * len(phases), seconds.sum(axis=0))
    print_rows(rows, console or Console(highlight=False))
    if json_file is not None:
        write_rows(rows, json_file)
    if image is not None:
        rates = number / np.median(seconds, axis=-1)
        lines = {name: rates[:, arm].tolist() for arm, name in enumerate(ARMS)}
        save_figure(draw_phases(phases, lines)[1], image)
    if readme is not None:
        notes = [
            f"`{json.dumps(speculative_config)}`; {requests} requests of {NUM_TOKENS} new tokens "
            f"in each phase, greedy; medians of {reps} turns, ratios too.",
            *picture("tokens per second of each phase", image, readme),
        ]
        write_section(rows, readme, SECTION, notes)
    return rows


def compared(name: str, number: int, seconds: Float[np.ndarray, "A R"]) -> list[Row]:
    """Return the rows of a phase: tokens per second off, on, and adaptive beside the better.

    The ratio is the median of the ratios turn by turn, which other load disturbs less.

    Args:
        name: of the phase.
        number: of its tokens.
        seconds: by arm and turn.
    """
    rates = (number / np.median(seconds, axis=1)).tolist()
    ratios = np.median(seconds[:2] / seconds[2], axis=1)
    peer = int(ratios.argmin())
    rows = [
        Row(name=f"{name}: {arm}", value=rate, unit="tokens/s")
        for arm, rate in zip(ARMS[:2], rates[:2], strict=True)
    ]
    told = f"{name}: adaptive", rates[2], "tokens/s", rates[peer], ARMS[peer]
    return [*rows, compare(*told, at_least=GOAL, ratio=float(ratios[peer]))]


def run_phase(service: Service, prompts: Sequence[Prompt], clients: int, requests: int) -> float:
    """Return the seconds that a number of clients needed for all requests."""

    async def send(item: tuple[int, Prompt]) -> None:
        seed, prompt = item
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, seed=seed)
        (stream,) = service.submit_ids(prompt.tokens, params)
        async for _ in stream:
            pass

    items = [(i, prompts[i % len(prompts)]) for i in range(requests)]
    start = time.perf_counter()
    asyncio.run(closed_loop(send, items, clients))
    return time.perf_counter() - start
