"""``specjax bench adaptive``: adaptive K beside drafting always and never, while the load changes.

The services go through the same phases, each with a number of clients that send one request after
the other, and take turns phase by phase. Requests want different numbers of tokens, as a server's
do: with 64 each, those of the service that never drafts kept in step, so that their prompts were
read in groups and no slot was ever empty, which gained it a tenth at 8 clients. The goal of a phase
is a share of the better of on and off.
"""

import asyncio
import itertools
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
from specjax.measure.turns import take_turns, tell
from specjax.viz.figure import check_picture, save_figure
from specjax.viz.phases import phases as draw_phases

ARMS = ("off", "on", "adaptive")
PHASES = (1, 8, 32, 4, 16, 1)  # clients
NUM_TOKENS = 32, 64  # of a completion: the fewest, the most
MOST_EACH = 24  # requests of a client in one phase, some seconds
GOAL, DRAWS = 0.97, 10_000
SECTION = "adaptive"
Request = tuple[list[int], SamplingParams]  # prompt ids, what is wanted


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
        requests: of each phase, by all clients together, at most ``MOST_EACH`` by each.
        reps: how often each service goes through the phases; medians are reported.
        max_model_len: prompt and output together; longer prompts are left out.
        readme: a Markdown file, in whose section "adaptive" to put the table and the picture.
        image: where to draw the phases.
        console: where to print.

    Raises:
        ValueError: a bad model or config, one without ``adaptive``, or fewer requests than clients.
    """
    console = console or Console(highlight=False)
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
    prompts = fitting(models["off"], NUM_TOKENS[1])
    work = {clients: requests_of(prompts, min(requests, MOST_EACH * clients)) for clients in phases}
    with open_services(models, max_waiting=1) as services:
        for service in services.values():
            service.warm_up()
        calls = [
            partial(run_phase, service, work[clients], clients)
            for clients in phases
            for service in services.values()
        ]
        found = take_turns(calls, reps, warm_up=1, started=tell(console.print, "phases", reps))
    rows = [machine_row()]
    numbers = [sum(params.max_tokens or 0 for _, params in work[clients]) for clients in phases]
    seconds = np.reshape(found, (len(phases), len(ARMS), reps))
    for i, (clients, number, one) in enumerate(zip(phases, numbers, seconds, strict=True)):
        rows += compared(f"phase {i + 1}, {clients} clients", number, one)
    rows += compared("all phases", sum(numbers), seconds.sum(axis=0))
    print_rows(rows, console)
    if json_file is not None:
        write_rows(rows, json_file)
    if image is not None:
        rates = np.array(numbers)[:, None] / np.median(seconds, axis=-1)
        lines = {name: rates[:, arm].tolist() for arm, name in enumerate(ARMS)}
        save_figure(draw_phases(phases, lines)[1], image)
    if readme is not None:
        notes = [
            f"`{json.dumps(speculative_config)}`; {requests} requests in each phase, at most "
            f"{MOST_EACH} by a client, of {NUM_TOKENS[0]} to {NUM_TOKENS[1]} new tokens, greedy; "
            f"medians of {reps} turns, ratios too (with 90% intervals).",
            *picture("tokens per second of each phase", image, readme),
        ]
        write_section(rows, readme, SECTION, notes)
    return rows


def compared(name: str, number: int, seconds: Float[np.ndarray, "A R"]) -> list[Row]:
    """Return the rows of a phase: tokens per second off, on, and adaptive beside the better.

    The ratio is the median of the ratios turn by turn, which other load disturbs less; its interval
    of 90% is a bootstrap over the turns.

    Args:
        name: of the phase.
        number: of its tokens.
        seconds: by arm and turn.
    """
    rates = (number / np.median(seconds, axis=1)).tolist()
    turns = seconds[:2] / seconds[2]
    ratios = np.median(turns, axis=1)
    peer = int(ratios.argmin())
    drawn = np.random.default_rng(0).choice(turns[peer], (DRAWS, turns.shape[1]))
    low, high = np.quantile(np.median(drawn, axis=1), (0.05, 0.95)).tolist()
    rows = [
        Row(name=f"{name}: {arm}", value=rate, unit="tokens/s")
        for arm, rate in zip(ARMS[:2], rates[:2], strict=True)
    ]
    told = f"{name}: adaptive", rates[2], "tokens/s", rates[peer], ARMS[peer]
    ratio = float(ratios[peer])
    return [*rows, compare(*told, at_least=GOAL, ratio=ratio, interval=(low, high))]


def requests_of(prompts: Sequence[Prompt], number: int) -> list[Request]:
    """Return a phase's requests, the same for all services."""
    fewest, most = NUM_TOKENS
    lengths = np.random.default_rng(0).integers(fewest, most + 1, number).tolist()
    return [
        (prompt.tokens, SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, seed=i))
        for i, (length, prompt) in enumerate(zip(lengths, itertools.cycle(prompts), strict=False))
    ]


def run_phase(service: Service, requests: Sequence[Request], clients: int) -> float:
    """Return the seconds that a number of clients needed for all requests."""

    async def send(request: Request) -> None:
        (stream,) = service.submit_ids(*request)
        async for _ in stream:
            pass

    start = time.perf_counter()
    asyncio.run(closed_loop(send, requests, clients))
    return time.perf_counter() - start
