"""``specjax bench methods``: every method on the shipped prompts, and what theory foretells.

Methods take turns on the same prompts, in one process. Acceptance per position on one half of
the prompts and costs of rounds measured apart give the predicted speedup; it is judged by the
wall clock on the other half, reading the prompt included.
"""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from specjax.bench.costs import Costs, round_costs
from specjax.bench.plan import DRAFT_MODEL, LEARNED, NGRAM, SUFFIX
from specjax.bench.prompts import complete as complete_prompts
from specjax.bench.prompts import fitting, not_degenerate
from specjax.bench.report import MOST_LOAD, busy
from specjax.engine.llm import LLM
from specjax.engine.params import SamplingParams
from specjax.files import write_json
from specjax.metrics import SpecDecodeCounters, distinct_bigrams

PLAIN = "plain"
METHODS: dict[str, dict[str, Any] | None] = {
    PLAIN: None,
    "ngram": NGRAM,
    "suffix": SUFFIX,
    "draft_model": {**DRAFT_MODEL, "model": "bundled:draft"},
    **LEARNED,
}


class Half(NamedTuple):
    """What a method did with one half of the prompts."""

    tokens: list[list[int]]
    seconds: float  # median of the repetitions
    counters: SpecDecodeCounters

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return sum(map(len, self.tokens)) / self.seconds


def bench_methods(
    json_file: Path | None,
    *,
    names: Sequence[str] = tuple(METHODS),
    batches: Sequence[int] = (1,),
    temperatures: Sequence[float] = (0.0,),
    num_tokens: int = 64,
    reps: int = 3,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Measure, print, and write the rows to ``json_file``.

    Raises ValueError for an unknown method or if too few completions are worth measuring on.
    """
    console = console or Console(highlight=False)
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise ValueError(f"unknown method {unknown[0]!r}: use some of {', '.join(METHODS)}")
    load = busy()
    if load > MOST_LOAD:
        console.print(f"other processes keep {load:.1f} cores busy: these numbers will move")
    names = list(dict.fromkeys((PLAIN, *names)))
    llms = {name: LLM("bundled", speculative_config=METHODS[name]) for name in names}
    plain = llms[PLAIN]
    kept = not_degenerate(complete_prompts(plain, fitting(plain, num_tokens), num_tokens))
    prompts = [one.prompt.tokens for one in kept]
    rows = [
        row
        for batch in batches
        for temperature in temperatures
        for row in make_rows(llms, prompts, batch, temperature, num_tokens, reps)
    ]
    print_rows(rows, console)
    if json_file is not None:
        write_json(json_file, rows)
        console.print(f"wrote {json_file}", soft_wrap=True, markup=False)
    return rows


def generate(llm: LLM, prompts: Sequence[list[int]], batch: int, params: SamplingParams):
    """Complete prompts in batches; return the outputs and the seconds."""
    outputs, start = [], time.perf_counter()
    for i in range(0, len(prompts) - batch + 1, batch):
        group = [{"prompt_token_ids": prompt} for prompt in prompts[i : i + batch]]
        outputs += [one.outputs[0] for one in llm.generate(group, params, use_tqdm=False)]
    return outputs, time.perf_counter() - start


def measure_half(
    llms: dict[str, LLM],
    prompts: Sequence[list[int]],
    batch: int,
    params: SamplingParams,
    reps: int,
) -> dict[str, Half]:
    """Let the methods take turns on the prompts; a first round is not counted."""
    halves: dict[str, Half] = {}
    seconds: dict[str, list[float]] = {name: [] for name in llms}
    for rep in range(reps + 1):
        for name, llm in llms.items():
            outputs, took = generate(llm, prompts, batch, params)
            if rep:
                seconds[name].append(took)
                counters = SpecDecodeCounters.zeros(max(llm.engine.drafter.depth, 1))
                for metrics in (one.spec_decode_metrics for one in outputs):
                    if metrics is not None:
                        steps = metrics.per_step_drafted, metrics.per_step_accepted
                        counters = counters.add(*steps)
                tokens = [list(one.token_ids) for one in outputs]
                halves[name] = Half(tokens, statistics.median(seconds[name]), counters)
    return halves


def rounds_of(half: Half) -> float:
    """Return how many rounds a half took: each brings one token and those accepted."""
    num_tokens = sum(len(tokens) - 1 for tokens in half.tokens)
    return num_tokens - half.counters.num_accepted_tokens


def tokens_per_round(half: Half) -> float:
    """Return tokens per round of one request, the first token left out: prefill brings it."""
    return sum(len(tokens) - 1 for tokens in half.tokens) / max(rounds_of(half), 1)


def predict(
    name: str, known: dict[str, Half], costs: dict[str, Costs], first: dict[str, float], length: int
) -> float:
    """Foretell a method's speedup from the other half of the prompts and measured costs.

    Speedup = (f + n t) / (f' + n r / tau): f and f' seconds to the first token, n more tokens,
    a plain step of t and a round of r seconds, tau tokens per round. What the host adds to a
    plain step it adds to a round.
    """
    plain = known[PLAIN]
    seconds = plain.seconds / len(plain.tokens)
    host = max((seconds - first[PLAIN]) / length - costs[PLAIN].plain, 0.0)
    rounds = length / tokens_per_round(known[name])
    return seconds / (first[name] + rounds * (costs[name].whole + host))


def make_rows(
    llms: dict[str, LLM],
    prompts: Sequence[list[int]],
    batch: int,
    temperature: float,
    num_tokens: int,
    reps: int,
) -> list[dict[str, Any]]:
    """Measure every method at one batch size and temperature."""
    params = SamplingParams(temperature=temperature, max_tokens=num_tokens, ignore_eos=True, seed=0)
    one_token = SamplingParams(temperature=temperature, max_tokens=1, ignore_eos=True, seed=0)
    known, judged = (
        measure_half(llms, half, batch, params, reps) for half in (prompts[::2], prompts[1::2])
    )
    starts = measure_half(llms, prompts[1::2], batch, one_token, reps)
    first = {name: half.seconds / len(half.tokens) for name, half in starts.items()}
    costs = {name: round_costs(llm, batch, 15) for name, llm in llms.items()}
    costs = {name: Costs(*(x / batch for x in cost)) for name, cost in costs.items()}
    rows = []
    for name, half in judged.items():
        plain = name == PLAIN
        draft = 0.0 if plain else max(costs[name].whole - costs[name].verify, 0.0)
        rates = half.counters.acceptance_rate_per_pos
        distinct = [distinct_bigrams(tokens) for tokens in half.tokens]
        rows.append(
            {
                "method": name,
                "batch": batch,
                "temperature": temperature,
                "tokens_per_s": half.speed,
                "tokens_per_round": tokens_per_round(half),
                "acceptance_per_pos": [] if rates is None else list(rates),
                "draft_s": draft * batch,
                "verify_s": (costs[name].plain if plain else costs[name].verify) * batch,
                "speedup": half.speed / judged[PLAIN].speed,
                "predicted_speedup": predict(name, known, costs, first, num_tokens - 1),
                "distinct_bigrams": statistics.mean(distinct),
            }
        )
    return rows


def print_rows(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print one line per row."""
    table = Table("method", "batch", "T", "tokens/s", "tokens/round", "accepted at 1, 2, ...")
    for name in ("draft ms", "verify ms", "speedup", "predicted"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["method"],
            str(row["batch"]),
            f"{row['temperature']:g}",
            f"{row['tokens_per_s']:.0f}",
            f"{row['tokens_per_round']:.2f}",
            " ".join(f"{rate:.2f}" for rate in row["acceptance_per_pos"]),
            *(f"{1e3 * row[name]:.2f}" for name in ("draft_s", "verify_s")),
            *(f"{row[name]:.2f}x" for name in ("speedup", "predicted_speedup")),
        )
    console.print(table)
