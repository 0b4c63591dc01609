"""``specjax demo``: real prompts, plain and with drafters, the same text and what it took."""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specjax.bench.plan import DEEPER, DEPTH, DRAFT_MODEL, LEARNED, NGRAM, SUFFIX
from specjax.bench.prompts import KINDS, choose
from specjax.bench.report import MOST_LOAD, busy, num_cores
from specjax.engine.llm import LLM
from specjax.engine.params import SamplingParams
from specjax.engine.rounds import Progress
from specjax.markdown import around_section, picture, replace_section, table
from specjax.metrics import SpecDecodeCounters, distinct_bigrams
from specjax.viz.figure import check_picture, save_figure
from specjax.viz.live import legend, show
from specjax.viz.methods import Method, method_comparison

NUM_TOKENS = 64
REPS = 5
SEED = 7
SECTION = "demo"  # of a README
GREEDY, WARM = 0.0, 0.8
SHOWN = "ngram"  # the method whose completion is streamed
HEADINGS = (
    "method",
    "tokens/s",
    "speedup",
    "min-max",
    "tokens/round",
    "acceptance",
    "random prompts: speedup",
    "tokens/round",
    "same text",
)


class Arm(NamedTuple):
    """One line of the table: a drafter, a temperature, and the arm it is compared with."""

    name: str
    temperature: float
    config: dict[str, Any] | None
    plain: str


class Run(NamedTuple):
    """What one arm wrote on all prompts, and how often it asked the target."""

    token_ids: tuple[tuple[int, ...], ...]
    num_rounds: int  # without the first token of each prompt, which prefill makes
    counters: SpecDecodeCounters


COLD, HOT = "plain", f"plain, T={WARM}"
PAIR = {**DRAFT_MODEL, "model": "bundled:draft"}
ARMS = (
    Arm(COLD, GREEDY, None, COLD),
    Arm("ngram", GREEDY, NGRAM, COLD),
    Arm("suffix", GREEDY, SUFFIX, COLD),
    Arm("draft model", GREEDY, PAIR, COLD),
    *(Arm(name, GREEDY, config, COLD) for name, config in LEARNED.items()),
    Arm(HOT, WARM, None, HOT),
    Arm(f"coupled, T={WARM}", WARM, {**PAIR, "draft_sample_method": "coupled"}, HOT),
)


def run_demo(
    out: Path,
    *,
    arms: Sequence[Arm] = ARMS,
    num_tokens: int = NUM_TOKENS,
    reps: int = REPS,
    readme: Path | None = None,
    console: Console | None = None,
) -> bool:
    """Run the comparison, show it, save a picture; return whether every text was the same.

    ``readme`` is a Markdown file in whose section ``SECTION`` to put the table and the picture.
    Compiling is not timed: every arm completes all prompts once before the clock starts.
    Then the arms take turns, ``reps`` times.

    Raises ValueError, before any long work, if ``out`` cannot be written, and if too few
    completions are worth measuring on.
    """
    check_picture(out)
    if readme is not None:
        around_section(readme, SECTION)
    console = console or Console(highlight=False)
    started, load = time.monotonic(), busy()
    llms: dict[str, LLM] = {}
    for config in (None, *(arm.config for arm in arms if arm.config)):
        llms[str(config)] = LLM("bundled", speculative_config=config, max_num_seqs=1)
    target = llms[str(None)]
    chosen = [choose(target, num_tokens, kind) for kind in KINDS]
    texts = [[one.prompt.text for one in each.completions] for each in chosen]
    console.print(
        f"{' and '.join(map(str, chosen))}, {num_tokens} new tokens each, one at a time. "
        f"Compiling {len(arms)} methods first; that is not timed.",
        soft_wrap=True,
    )
    params = [
        SamplingParams(temperature=arm.temperature, seed=SEED, max_tokens=num_tokens)
        for arm in arms
    ]
    pairs = [(llms[str(arm.config)], one) for arm, one in zip(arms, params, strict=True)]
    sets = [[complete_all(llm, prompts, one) for llm, one in pairs] for prompts in texts]
    clocks: list[list[list[float]]] = [[[] for _ in arms] for _ in texts]
    for _ in range(reps):
        for prompts, seconds in zip(texts, clocks, strict=True):
            for times, (llm, one) in zip(seconds, pairs, strict=True):
                times.append(clock(llm, prompts, one))

    by_name = {arm.name: i for i, arm in enumerate(arms)}
    bases = [by_name[arm.plain] for arm in arms]
    methods, random = (
        [
            summarize(arm, runs[i], seconds[i], runs[base], seconds[base])
            for i, (arm, base) in enumerate(zip(arms, bases, strict=True))
        ]
        for runs, seconds in zip(sets, clocks, strict=True)
    )
    same = [
        all(runs[i].token_ids == runs[base].token_ids for runs in sets)
        for i, base in enumerate(bases)
    ]
    cells = [describe(*line) for line in zip(methods, random, same, strict=True)]
    prompts, runs = texts[0], sets[0]
    deeper = ", ".join(f"{name} {depth}" for name, depth in DEEPER.items())
    measured = (
        f"{reps} interleaved runs of {len(prompts)} prompts, {num_tokens} new tokens each, "
        f"one at a time, K = {DEPTH} ({deeper}), {num_cores()} CPU cores"
    )
    on = "; ".join(map(str, chosen))
    if load > MOST_LOAD:
        console.print(f"other processes keep {load:.1f} cores busy: speeds are not to be trusted")
    console.print(f"{measured}; {on}:", soft_wrap=True)
    print_table(console, cells)
    console.print(
        "speedup: median of the runs' ratios to plain, reading the prompts included; min-max: "
        "least and greatest of them; tokens/s: plain's median x speedup.",
        soft_wrap=True,
    )
    console.print(verdict(methods))

    shown = by_name[SHOWN]
    console.rule(f"{SHOWN}, live") if console.is_terminal else console.print(f"{SHOWN}, live:")
    lively = max(range(len(prompts)), key=lambda i: distinct_bigrams(runs[shown].token_ids[i]))
    if console.is_terminal:
        console.print(legend())
    else:
        console.file.write(last_lines(prompts[lively]))
    show(pairs[shown][0], prompts[lively], params[shown], console)
    save_figure(method_comparison(methods, note=measured)[1], out)
    if readme is not None:
        image = picture("tokens per round and speedup, per method", out, readme)
        lines = [*table(HEADINGS, cells), "", f"{measured}; {on}:", *image]
        replace_section(readme, SECTION, lines)
    console.print(f"Saved {out}. {time.monotonic() - started:.0f} s in all.")
    for arm, equal in zip(arms, same, strict=True):
        if not equal:
            console.print(f"DIFFERENT TEXT: {arm.name} did not write what {arm.plain} wrote.")
    return all(same)


def last_lines(prompt: str, num_lines: int = 2) -> str:
    """Return the end of a prompt, for the completion to follow."""
    return "".join(prompt.splitlines(keepends=True)[-num_lines:]).lstrip("\n")


def complete_all(llm: LLM, prompts: Sequence[str], params: SamplingParams) -> Run:
    """Complete every prompt, one at a time, keeping count of the rounds."""
    token_ids, num_rounds = [], 0
    counters = SpecDecodeCounters.zeros(llm.engine.drafter.depth)
    for prompt in prompts:
        progress: Progress | None = None
        for latest, _ in llm.stream(prompt, params):
            progress = latest
        assert progress is not None
        rounds = progress.rounds[1:]
        token_ids.append(tuple(progress.tokens))
        num_rounds += len(rounds)
        counters = counters.add(
            [len(one.drafted) for one in rounds], [one.num_accepted for one in rounds]
        )
    return Run(tuple(token_ids), num_rounds, counters)


def clock(llm: LLM, prompts: Sequence[str], params: SamplingParams) -> float:
    """Return the seconds that all prompts take, reading them included."""
    start = time.perf_counter()
    for prompt in prompts:
        llm.generate(prompt, params)
    return time.perf_counter() - start


def summarize(
    arm: Arm, run: Run, seconds: Sequence[float], plain: Run, plain_seconds: Sequence[float]
) -> Method:
    """Turn counts and times into a line of the table.

    There is one estimate of the speed: the median of the ratios turn by turn, which a busy
    machine disturbs less than the times themselves. Tokens per second are plain's, times it.
    """
    plain_tokens = sum(map(len, plain.token_ids))
    num_tokens = sum(map(len, run.token_ids))
    drafted = num_tokens - len(run.token_ids)  # by rounds, not by prefill
    ratios = [
        (num_tokens / mine) / (plain_tokens / theirs)
        for mine, theirs in zip(seconds, plain_seconds, strict=True)
    ]
    speedup = statistics.median(ratios)
    return Method(
        name=arm.name,
        tokens_per_second=plain_tokens / statistics.median(plain_seconds) * speedup,
        speedup=speedup,
        tokens_per_round=drafted / max(run.num_rounds, 1),
        acceptance=run.counters.acceptance_rate,
        spread=None if arm.name == arm.plain else (min(ratios), max(ratios)),
    )


def verdict(methods: Sequence[Method]) -> str:
    """Say in a sentence or two why the speedups are what they are."""
    costs = [(m.tokens_per_round / m.speedup, m) for m in methods if m.acceptance is not None]
    said = "; ".join(f"{m.name} {cost:.1f}" for cost, m in costs)
    return (
        "A method pays when a round brings more tokens than it costs in plain steps (derived: "
        f"tokens per round / speedup): {said}. "
        "A step mostly reads weights, so T(n), a step over n tokens, costs much less than "
        "n T(1): `specjax bench step --model bundled` measures it."
    )


def print_table(console: Console, rows: Sequence[Sequence[str]]) -> None:
    """Print a table on a terminal, plain lines elsewhere."""
    table = Table(*HEADINGS)
    for cells in rows:
        style = {"yes": "green", "NO": "bold red"}.get(cells[-1], "")
        table.add_row(*cells[:-1], Text(cells[-1], style=style))
        if not console.is_terminal:
            named = zip(HEADINGS[1:], cells[1:], strict=True)
            line = ", ".join(f"{heading} {cell}" for heading, cell in named)
            console.print(f"{cells[0]}: {line}", soft_wrap=True)
    if console.is_terminal:
        console.print(table)


def describe(method: Method, random: Method, equal: bool) -> tuple[str, ...]:
    """Put a method into the table's cells: on the shipped prompts, and in short on random ones."""
    own = method.spread is None  # it is what others are compared with
    return (
        method.name,
        f"{method.tokens_per_second:,.0f}",
        f"{method.speedup:.2f}x",
        "-" if method.spread is None else "{:.2f}-{:.2f}".format(*method.spread),
        f"{method.tokens_per_round:.2f}",
        "-" if method.acceptance is None else f"{method.acceptance:.0%}",
        f"{random.speedup:.2f}x",
        f"{random.tokens_per_round:.2f}",
        "-" if own else "yes" if equal else "NO",
    )
