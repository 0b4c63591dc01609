"""``specjax bench depths``: vLLM's server at every K under two loads, and what it says of itself.

One server after another, compiled and in the checkpoint's dtype as vLLM runs by default, with the
bundled pair. For every K and load four files are kept: what the client measured
(``client.json``, in the format of ``vllm bench serve``), a scrape before and one after, and the
lines that were logged meanwhile. ``specjax explain`` reads each of them. Every load is saved when
it is done, and a run that was cut off goes on behind the last of them.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specjax.bench.client import Load, load
from specjax.bench.plan import NGRAM
from specjax.bench.report import num_cores
from specjax.bundled import PROMPTS, prompts, resolve
from specjax.engine.text.tokenizer import load_tokenizer
from specjax.host.files import read_json_object, write_json
from specjax.host.launch import START_TIMEOUT
from specjax.host.machine import processor, stamp
from specjax.oracle.ask import open_server
from specjax.readers.metrics import fetch_text

METHODS: Mapping[str, Mapping[str, Any]] = {
    "ngram": {key: value for key, value in NGRAM.items() if key != "num_speculative_tokens"},
    "draft_model": {"method": "draft_model", "model": str(resolve("bundled:draft"))},
}
DEPTHS = 1, 2, 3, 5, 8
LOADS: Mapping[int, int] = {1: 8, 16: 48}  # requests at a time: how many
NUM_TOKENS = 512  # per request: long, so that a log's running requests are seldom in their prompt
WARM_TOKENS = 64  # of a request before the measured ones
EVERY = 1.0  # seconds between the lines of statistics: a load here lasts half a minute, not hours
QUIET = 2.5  # seconds before and after a load, until its lines are logged and no others
SECTION = "depths"  # of a Markdown file
ABOUT, CLIENT = "about.json", "client.json"  # of a recording, and of a load
Echo = Callable[[str], None]


class Arm(NamedTuple):
    """A server: how it drafts, by a method's name and K; plain decoding by "plain" and 0."""

    method: str
    k: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.method}-k{self.k}" if self.k else self.method

    def arguments(self, most: int) -> list[str]:
        """Return the arguments of its command line, for ``most`` requests at a time."""
        given = ["--no-enable-prefix-caching", "--max-num-seqs", str(most)]
        if self.k:
            config = {**METHODS[self.method], "num_speculative_tokens": self.k}
            given += ["--speculative-config", json.dumps(config)]
            given += ["--enable-per-request-metrics", "--per-request-spec-decode-metrics"]
            given += ["summary"]
        return given


PLAIN = Arm("plain", 0)


def bench_depths(
    folder: Path,
    *,
    methods: Sequence[str] = tuple(METHODS),
    depths: Sequence[int] = DEPTHS,
    loads: Mapping[int, int] = LOADS,
    num_tokens: int = NUM_TOKENS,
    echo: Echo = print,
) -> Path:
    """Record plain decoding and every method and K; return the archive of the folder's files.

    What the folder has from a run with the same ``loads`` and ``num_tokens`` is kept.

    Raises:
        ValueError: an unknown method, or the folder has other files.
        OracleMissing: there is no vLLM.
    """
    for name in methods:
        if name not in METHODS:
            raise ValueError(f"unknown method {name!r}: use some of {', '.join(METHODS)}")
    about = {"num_tokens": num_tokens, "loads": {str(one): n for one, n in loads.items()}}
    if folder.exists() and any(folder.iterdir()):
        kept = read_json_object(folder / ABOUT) if (folder / ABOUT).is_file() else {}
        if any(kept.get(key) != value for key, value in about.items()):
            raise ValueError(
                f"{folder} has other files: give an empty folder, a new one, or one "
                f"of a run that was cut off, with {about}"
            )
        about = kept
    encode = load_tokenizer(resolve("bundled")).encode
    asked = [encode(one["turns"][0]) for kind in PROMPTS for one in prompts(kind)]
    arms = [PLAIN, *(Arm(name, k) for name in methods for k in depths)]
    about |= {"written by": stamp(), "processor": processor(), "cores": num_cores()}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / ABOUT, about)
    start = time.perf_counter()
    for arm in arms:
        left = {n: num for n, num in loads.items() if not saved(folder, arm, n)}
        if left:
            versions = record(folder, arm, asked, left, num_tokens, max(loads), echo)
            write_json(folder / ABOUT, about := {**about, "versions": versions})
        echo(f"{time.perf_counter() - start:4.0f} s  {arm.name} is recorded")
    return Path(shutil.make_archive(str(folder), "xztar", folder))


def place(folder: Path, arm: Arm, at_a_time: int) -> Path:
    """Return the folder of a server's load."""
    return folder / arm.name / f"load-{at_a_time}"


def saved(folder: Path, arm: Arm, at_a_time: int) -> bool:
    """Return whether a load was recorded: what the client measured is written last."""
    return (place(folder, arm, at_a_time) / CLIENT).is_file()


def record(
    folder: Path,
    arm: Arm,
    asked: Sequence[Sequence[int]],
    loads: Mapping[int, int],
    num_tokens: int,
    most: int,
    echo: Echo,
) -> Mapping[str, Any]:
    """Record one server, for ``most`` at a time, under every load; return vLLM's versions."""
    fixed = {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    bodies = [{"prompt": list(one), **fixed} for one in asked]
    peer = open_server(
        "bundled",
        arguments=arm.arguments(most),
        timeout=START_TIMEOUT,
        threads=num_cores(),
        environment={"VLLM_LOG_STATS_INTERVAL": str(EVERY)},
    )
    with peer as (answer, url):
        for at_a_time in loads:  # every shape has been seen
            warm = [{**one, "max_tokens": WARM_TOKENS} for one in bodies[: 2 * at_a_time]]
            load(url, warm, at_a_time)
        for at_a_time, number in loads.items():
            own = place(folder, arm, at_a_time)
            own.mkdir(parents=True, exist_ok=True)
            time.sleep(QUIET)
            logged = len(answer["log"]())
            sent = list(islice(cycle(bodies), number))
            (own / "before.prom").write_text(fetch_text(f"{url}/metrics"), encoding="utf-8")
            done = load(url, sent, at_a_time)
            time.sleep(QUIET)  # vLLM counts the last tokens after they are sent
            (own / "after.prom").write_text(fetch_text(f"{url}/metrics"), encoding="utf-8")
            (own / "server.log").write_text(answer["log"]()[logged:], encoding="utf-8")
            num_input = sum(len(one["prompt"]) for one in sent)
            write_json(own / CLIENT, to_result(done, num_input, at_a_time))
            echo(f"{arm.name}, {at_a_time} at a time: {done.speed:.0f} tokens/s")
        return answer["versions"]


def to_result(done: Load, num_input: int, concurrency: int) -> dict[str, Any]:
    """Return a load in the format of ``vllm bench serve --save-result``.

    Acceptance is the sum over what each answer says of its own request.
    """
    found: dict[str, Any] = {
        "backend": "vllm",
        "max_concurrency": concurrency,
        "duration": done.seconds,
        "completed": len(done.completions),
        "total_input_tokens": num_input,
        "total_output_tokens": sum(one.num_tokens for one in done.completions),
    }
    for name in ("ttft", "tpot", "e2el"):
        values = 1e3 * np.array([one.times[name] for one in done.completions])
        found |= {f"{which}_{name}_ms": value for which, value in statistics(values)}
    own = [one.metrics.get("speculative_decoding") for one in done.completions]
    if all(own):
        rounds, drafted, accepted = (
            sum(one[name] for one in own if one)
            for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
        )
        histogram = sum(np.array(one["acceptance_histogram"]) for one in own if one)
        reached = np.cumsum(histogram[:0:-1])[::-1] / rounds  # rounds that accepted more than i
        found |= {
            "spec_decode_num_drafts": rounds,
            "spec_decode_draft_tokens": drafted,
            "spec_decode_accepted_tokens": accepted,
            "spec_decode_acceptance_length": 1 + accepted / rounds,
            "spec_decode_per_position_acceptance_rates": reached.tolist(),
        }
    return found


def statistics(values: np.ndarray) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each statistic that vLLM's tool has."""
    yield "mean", float(values.mean())
    yield "std", float(values.std())
    for name, percent in (("median", 50), ("p90", 90), ("p99", 99)):
        yield name, float(np.percentile(values, percent))
