"""``specjax bench peers``: against vLLM, transformers and llama.cpp with their defaults.

Same weights, prompts, threads and K; greedy; prefill included, detokenizing not. The arms of a
section take turns on every prompt, each in a separate process that is idle meanwhile.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from specjax.bench.arms import Arm, Echo, Key, Timings, in_groups, time_arms, total
from specjax.bench.bandwidth import read_bandwidth
from specjax.bench.engines import BFLOAT16, OURS, SETTINGS, open_arms
from specjax.bench.plan import DEPTH, QWEN3_100M, QWEN3_600M
from specjax.bench.prompts import KINDS, Chosen, choose
from specjax.bench.report import (
    MOST_LOAD,
    Row,
    busy,
    compare,
    machine_row,
    num_cores,
    number,
    print_rows,
    write_rows,
)
from specjax.bench.shapes import write_random
from specjax.bundled import resolve
from specjax.engine.llm import LLM
from specjax.host.markdown import around_section, replace_section, table
from specjax.models.config import ModelConfig
from specjax.weights.save import hf_config

SECTION = "peers"  # of a README
BATCHES = (1, 4, 8, 32)
PLAIN = "plain"
METHODS = (PLAIN, "ngram", "draft_model")
NUM_FIRST = 4  # prompts on which the time to the first token is taken
READINGS = {"bundled": (512,), "88M": (512, 2048), "0.6B": (512, 2048)}  # prompt tokens


class Shape(NamedTuple):
    """A model with random weights, its prompt length and its output length."""

    config: ModelConfig
    num_prompt: int
    num_tokens: int


SHAPES = {
    "88M": Shape(replace(QWEN3_100M, max_position_embeddings=4096), 128, 48),
    "0.6B": Shape(QWEN3_600M, 32, 16),
}
SECTIONS = ("bundled", *SHAPES)
BUNDLED_ARMS: tuple[Key, ...] = (
    *(("specjax", method) for method in (*METHODS, "mtp")),
    *(("specjax bfloat16", method) for method in METHODS),
    *(("vLLM", method) for method in METHODS),
    ("vLLM float32", PLAIN),
    ("vLLM eager float32", PLAIN),
    *(("transformers", method) for method in METHODS),
    ("llama.cpp", PLAIN),
    ("llama.cpp", "ngram"),
)
ENGINES = ("specjax", "specjax bfloat16", "vLLM", "vLLM float32", "transformers", "llama.cpp")
SHAPE_ARMS = {
    "88M": tuple((engine, PLAIN) for engine in ENGINES),
    "0.6B": tuple((engine, PLAIN) for engine in ENGINES if engine != "vLLM float32"),
}

Goals = Mapping[tuple[str, str, str], Sequence[float]]  # (ours, theirs, method): by BATCHES
BUNDLED_GOALS: Goals = {
    ("specjax", "vLLM", PLAIN): (1.3, 1.1, 1.0, 0.8),
    ("specjax", "vLLM float32", PLAIN): (1.5, 1.2, 1.1, 1.0),
    ("specjax", "vLLM", "ngram"): (1.3, 1.2, 1.0, 0.9),
    ("specjax", "vLLM", "draft_model"): (1.3, 1.2, 1.0, 0.9),
    ("specjax bfloat16", "vLLM", "ngram"): (1.3, 1.2, 1.0, 0.9),
    ("specjax bfloat16", "vLLM", "draft_model"): (1.3, 1.2, 1.0, 0.9),
}
SHAPE_GOALS: Goals = {("specjax bfloat16", "vLLM", PLAIN): (1.2, 1.1, 1.0, 0.9)}
READING_GOALS = {("bundled", "specjax", 512): 1.0}
READING_GOALS |= {(shape, "specjax bfloat16", 512): 1.0 for shape in SHAPES}
BANDWIDTH_GOAL = 0.8  # of the read bandwidth, in a step at batch 1
MEMORY_GOAL = 1.4  # peak memory over the checkpoint's bytes
JUDGED = "0.6B"  # the shape for both
GAIN_GOAL = 1.4  # of the best method over the fastest plain decoding of any engine


class Measured(NamedTuple):
    """One arm's results on one set of prompts."""

    where: str
    arm: Arm
    speeds: Mapping[int, float]  # tokens per second, by batch
    peak_bytes: int | None  # after the turns at batch 1
    first: float | None  # seconds to the first token, batch 1


class Report(NamedTuple):
    """The results of one section."""

    measured: list[Measured]
    rows: list[Row]
    notes: list[str]  # prompts and settings


def bench_peers(
    json_file: Path | None,
    *,
    model: str = "bundled",
    draft: str = "bundled:draft",
    only: Sequence[str] = SECTIONS,
    num_tokens: int = 64,
    reps: int = 3,
    readme: Path | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Measure everything, print it, and write it to ``json_file``. Goals are never failures.

    ``only`` names sections: the bundled pair (or ``model`` and ``draft`` in its place) and
    shapes with random weights. ``readme`` is a Markdown file in whose section ``SECTION`` to put
    the totals. Raises ValueError for an unknown section or if no completion is worth measuring
    on, and OracleFailure or WorkerFailure if a peer fails that is installed.
    """
    if readme is not None:
        around_section(readme, SECTION)
    unknown = [name for name in only if name not in SECTIONS]
    if unknown:
        raise ValueError(f"unknown section {unknown[0]!r}: use some of {', '.join(SECTIONS)}")
    console = console or Console(highlight=False)

    def echo(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    load = busy()
    if load > MOST_LOAD:
        echo(f"other processes keep {load:.1f} cores busy: no goal is judged on these numbers")
    reports = []
    for name in dict.fromkeys(only):
        if name == "bundled":
            reports.append(bundled_report(resolve(model), resolve(draft), num_tokens, reps, echo))
        else:
            reports.append(shape_report(name, SHAPES[name], reps, echo))
    rows = [machine_row(), *(row for one in reports for row in one.rows)]
    measured = [one for report in reports for one in report.measured]
    for line in table(ARM_HEADINGS, map(arm_cells, measured)):
        echo(line)
    totals = [row for row in rows if ", prompt " not in row.name]
    print_rows(totals, console, judged=load <= MOST_LOAD)
    if json_file is not None:
        write_rows([*rows, *(row for one in measured for row in arm_rows(one))], json_file)
        echo(f"wrote {json_file}")
    if readme is not None:
        notes = [line for report in reports for line in report.notes]
        notes.append(
            f"{SETTINGS}; greedy, K = {DEPTH} (mtp 7), {num_cores()} threads, medians of {reps} "
            "interleaved runs, reading the prompt included."
        )
        replace_section(readme, SECTION, markdown(measured, totals, notes))
    return rows


def bundled_report(model: Path, draft: Path, num_tokens: int, reps: int, echo: Echo) -> Report:
    """Return the results of every method on prompts of both kinds."""
    report, where = Report([], [], []), model.name if model != resolve("bundled") else "bundled"
    llm = LLM(str(model))
    sets = [choose(llm, num_tokens, kind) for kind in KINDS]
    with ExitStack() as opened:
        arms = open_arms(opened, BUNDLED_ARMS, model, draft, BATCHES, echo)
        alone = [arm._replace(batches=(1,)) if arm.method == "mtp" else arm for arm in arms]
        for chosen in sets:
            report.notes.append(f"{where}: {chosen}, {num_tokens} new tokens each;")
            echo(report.notes[-1])
            used = alone if chosen.kind == "shipped" else [arm for arm in alone if not is_set(arm)]
            prompts = [one.prompt.tokens for one in chosen.completions]
            timings = time_batches(used, prompts, num_tokens, reps, echo)
            firsts = time_arms(used, in_groups(prompts[:NUM_FIRST], 1), 1, 1, reps, echo)
            place = f"{where}, {chosen.kind} prompts"
            report.measured.extend(measure(place, used, timings, firsts))
            report.rows.extend(prompt_rows(place, chosen, used, timings[1]))
            report.rows.extend(total_rows(place, used, timings, BUNDLED_GOALS))
            report.rows.append(gain_row(place, used, timings[1]))
        vocab_size = llm.core.model_config.vocab_size
        report.rows.extend(reading_rows("bundled", where, arms, vocab_size, reps, echo))
    return report


def shape_report(name: str, shape: Shape, reps: int, echo: Echo) -> Report:
    """Return the results of plain decoding and prefill on random weights: time and memory only."""
    rng = np.random.default_rng(1)
    size = (max(BATCHES), shape.num_prompt)
    prompts = rng.integers(0, shape.config.vocab_size, size).tolist()
    with temporary_checkpoint(name, shape.config) as (folder, num_bytes), ExitStack() as opened:
        asked = f"{shape.num_prompt} + {shape.num_tokens} tokens"
        echo(f"{name}, random weights, {num_bytes / 1e6:.0f} MB: {asked}")
        arms = open_arms(opened, SHAPE_ARMS[name], folder, folder, BATCHES, echo)
        bandwidth = read_bandwidth()
        timings = {
            batch: time_arms(
                arms, in_groups(prompts[:batch], batch), batch, shape.num_tokens, reps, echo
            )
            for batch in BATCHES
        }
        firsts = time_arms(arms, [prompts[:1]], 1, 1, reps, echo)
        bandwidth = (bandwidth + read_bandwidth()) / 2
        where = f"{name} random"
        measured = measure(where, arms, timings, firsts)
        rows = total_rows(where, arms, timings, SHAPE_GOALS)
        rows += reading_rows(name, where, arms, shape.config.vocab_size, reps, echo)
        if name == JUDGED:
            rows += share_rows(where, arms, timings[1], firsts, shape, num_bytes, bandwidth)
            rows += memory_rows(measured, num_bytes)
    notes = f"{name}: random weights in bfloat16, prompts of {shape.num_prompt} tokens, "
    return Report(measured, rows, [f"{notes}{shape.num_tokens} new ones;"])


def is_set(arm: Arm) -> bool:
    """Return whether an arm differs from its engine's defaults."""
    return " " in arm.engine


@contextmanager
def temporary_checkpoint(name: str, config: ModelConfig) -> Iterator[tuple[Path, int]]:
    """Yield the folder and the bytes of a checkpoint with random weights.

    The folder has the same name in every run, because vLLM's compile cache depends on it.
    """
    folder = Path(tempfile.gettempdir()) / "specjax-bench" / name
    try:
        yield folder, write_random(folder, hf_config(config, dtype="bfloat16", end=0))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def time_batches(
    arms: Sequence[Arm], prompts: Sequence[list[int]], num_tokens: int, reps: int, echo: Echo
) -> dict[int, Timings]:
    """Return the arms' timings at every batch size, the arms taking turns."""
    return {
        batch: time_arms(arms, in_groups(prompts, batch), batch, num_tokens, reps, echo)
        for batch in BATCHES
    }


def measure(
    where: str, arms: Sequence[Arm], timings: Mapping[int, Timings], firsts: Timings
) -> list[Measured]:
    """Return every arm's speeds, peak memory and time to first token."""
    return [
        Measured(
            where,
            arm,
            {batch: total(timed[arm.key]) for batch, timed in timings.items() if arm.key in timed},
            timings[1][arm.key][-1].peak_bytes,
            sum(one.seconds for one in firsts[arm.key]) / len(firsts[arm.key]),
        )
        for arm in arms
    ]


def pairs(arms: Sequence[Arm]) -> list[tuple[Arm, Arm]]:
    """Return the pairs (our arm, peer) of one method; our bfloat16 pairs with bfloat16 peers."""
    ours = [arm for arm in arms if arm.engine in OURS]
    theirs = [arm for arm in arms if arm.engine not in OURS]
    return [
        (mine, other)
        for other in theirs
        for mine in ours
        if mine.method == other.method and (mine.engine == "specjax" or other.engine in BFLOAT16)
    ]


def prompt_rows(where: str, chosen: Chosen, arms: Sequence[Arm], timings: Timings) -> list[Row]:
    """Return rows of each prompt's speed against each peer's, batch 1."""
    rows = []
    for mine, other in pairs(arms):
        timed = zip(chosen.completions, timings[mine.key], timings[other.key], strict=True)
        for one, a, b in timed:
            name = f"{where}: {mine.engine} {mine.method}, prompt {one.prompt.name}"
            rows.append(compare(name, a.speed, "tokens/s", b.speed, other.label))
    return rows


def total_rows(
    where: str, arms: Sequence[Arm], timings: Mapping[int, Timings], goals: Goals
) -> list[Row]:
    """Return rows of every method's speed over all prompts, and of texts equal to the peer's."""
    rows, same = [], []
    for mine, other in pairs(arms):
        least = goals.get((mine.engine, other.engine, mine.method))
        for i, (batch, timed) in enumerate(timings.items()):
            if mine.key not in timed or other.key not in timed:
                continue
            name = f"{where}: {mine.engine} {mine.method}, batch {batch}"
            speeds = total(timed[mine.key]), "tokens/s", total(timed[other.key])
            goal = None if least is None else least[i]
            rows.append(compare(name, *speeds, other.label, at_least=goal))
            texts = [
                (a, b)
                for one, two in zip(timed[mine.key], timed[other.key], strict=True)
                for a, b in zip(one.tokens, two.tokens, strict=True)
            ]
            equal = sum(a == b for a, b in texts)
            same.append(compare(f"{name}: equal texts", equal, "texts", len(texts), other.label))
    return rows + same


def gain_row(where: str, arms: Sequence[Arm], timings: Timings) -> Row:
    """Return the row of our best method over the fastest plain decoding of any engine, batch 1."""
    speeds = {arm: total(timings[arm.key]) for arm in arms}
    drafted = [arm for arm in arms if arm.engine == "specjax" and arm.method != PLAIN]
    best = max(drafted, key=speeds.__getitem__)
    plain = max((arm for arm in arms if arm.method == PLAIN), key=speeds.__getitem__)
    name = f"{where}: the best method ({best.method}) over the fastest plain decoding"
    return compare(
        name, speeds[best], "tokens/s", speeds[plain], f"{plain.label} plain", at_least=GAIN_GOAL
    )


def reading_rows(
    section: str, where: str, arms: Sequence[Arm], vocab_size: int, reps: int, echo: Echo
) -> list[Row]:
    """Return rows of prefill speed on long prompts of random tokens."""
    rng, rows = np.random.default_rng(2), []
    plain = [arm for arm in arms if arm.method == PLAIN and arm.engine in (*OURS, "vLLM")]
    for length in READINGS[section]:
        echo(f"reading {length} tokens")
        prompt = rng.integers(0, vocab_size, length).tolist()
        timed = time_arms(plain, [[prompt]], 1, 1, reps, echo)
        for arm in plain:
            goal = READING_GOALS.get((section, arm.engine, length))
            name = f"{where}: {arm.engine} reads {length} tokens"
            speed = length / timed[arm.key][0].seconds
            for other in plain:
                if arm.engine in OURS and other.engine == "vLLM":
                    theirs = length / timed[other.key][0].seconds
                    rows.append(
                        compare(name, speed, "tokens/s", theirs, other.label, at_least=goal)
                    )
    return rows


def share_rows(
    where: str,
    arms: Sequence[Arm],
    timings: Timings,
    firsts: Timings,
    shape: Shape,
    num_bytes: int,
    bandwidth: float,
) -> list[Row]:
    """Return rows of the share of the read bandwidth that a plain step at batch 1 reaches."""
    rows = []
    for arm in arms:
        (whole,), (first,) = timings[arm.key], firsts[arm.key]
        step = (whole.seconds - first.seconds) / (shape.num_tokens - 1)
        goal = BANDWIDTH_GOAL if arm.engine in OURS else None
        name = f"{where}: a step at batch 1, {arm.label}"
        rates = num_bytes / step / 1e9, "GB/s", bandwidth / 1e9
        rows.append(compare(name, *rates, "read bandwidth of this run", at_least=goal))
    return rows


def memory_rows(measured: Sequence[Measured], num_bytes: int) -> list[Row]:
    """Return rows of every arm's peak memory over the bytes of the checkpoint."""
    rows = []
    for one in measured:
        if one.peak_bytes is not None:
            goal = MEMORY_GOAL if one.arm.engine in OURS else None
            name = f"{one.where}: peak memory, {one.arm.label}"
            sizes = one.peak_bytes / 1e6, "MB", num_bytes / 1e6
            rows.append(compare(name, *sizes, "the checkpoint", at_most=goal))
    return rows


def arm_rows(one: Measured) -> list[Row]:
    """Return rows of an arm's own results."""
    name = f"{one.where}: {one.arm.label} {one.arm.method}"
    rows = [
        Row(name=f"{name}, batch {batch}", value=speed, unit="tokens/s")
        for batch, speed in one.speeds.items()
    ]
    rows.append(Row(name=f"{name}, process start to first token", value=one.arm.start, unit="s"))
    if one.first is not None:
        rows.append(Row(name=f"{name}, time to first token", value=one.first, unit="s"))
    if one.peak_bytes is not None:
        rows.append(Row(name=f"{name}, peak memory", value=one.peak_bytes / 1e6, unit="MB"))
    return rows


ARM_HEADINGS = ("on", "engine", "method", *(f"tokens/s, batch {batch}" for batch in BATCHES))
ARM_HEADINGS += ("first token, ms", "peak memory, MB", "start, s")
PAIR_HEADINGS = ("ours", "peer", *(f"batch {batch}" for batch in BATCHES))
OTHER_HEADINGS = ("what", "ours", "against", "ratio", "wanted")


def arm_cells(one: Measured) -> list[str]:
    """Return an arm's own results as the cells of a table row."""
    return [
        *(one.where, one.arm.label, one.arm.method),
        *(f"{one.speeds[batch]:,.0f}" if batch in one.speeds else "-" for batch in BATCHES),
        "-" if one.first is None else f"{1e3 * one.first:.1f}",
        "-" if one.peak_bytes is None else f"{one.peak_bytes / 1e6:,.0f}",
        f"{one.arm.start:.1f}",
    ]


def markdown(
    measured: Sequence[Measured], rows: Sequence[Row], notes: Sequence[str] = ()
) -> list[str]:
    """Return three tables as lines of Markdown: arms, ratios to peers by batch, and the rest."""
    ratios: dict[tuple[str, str], dict[str, str]] = {}
    others = []
    for row in rows:
        if row.peer is None or row.ratio is None or row.unit == "texts":
            continue
        name, _, batch = row.name.partition(", batch ")
        wanted = row.goal and row.goal + ("" if row.met else ", missed")
        if batch.isdecimal():
            cell = f"{row.ratio:.2f}x" + (f" ({wanted})" if wanted else "")
            ratios.setdefault((name, row.against or ""), {})[f"batch {batch}"] = cell
        else:
            peer = f"{row.against}: {number(row.peer)}"
            value = f"{number(row.value)} {row.unit}"
            others.append((row.name, value, peer, f"{row.ratio:.2f}", wanted or ""))
    cells = [
        [*key, *(found.get(heading, "-") for heading in PAIR_HEADINGS[2:])]
        for key, found in ratios.items()
    ]
    return [
        *table(ARM_HEADINGS, map(arm_cells, measured)),
        *("", "Our tokens/s over the peer's, and what was wanted:", ""),
        *table(PAIR_HEADINGS, cells),
        "",
        *table(OTHER_HEADINGS, others),
        "",
        *notes,
    ]
