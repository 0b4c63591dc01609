"""``make ray``: 100,000 prompts by two Ray actors, of which one is killed every 20 seconds.

Every prompt must be there once, and the merged file the one that a single process writes, byte for
byte. All runs in a network namespace of its own: Ray listens on all addresses of a host.

With ``--overhead`` nothing is killed: what a token takes in one actor, over one in this process.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from specjax.jobs.prompt_file import read_file
from specjax.jobs.worker import Done, Setting, Worker
from tests.jobs.namespace import NAMESPACE, has_namespace
from tests.tiny import write_pair

MAX_TOKENS = 8
OPTIONS = {"max_model_len": 64, "max_num_seqs": 64}
SAMPLING = {"temperature": 0.8, "max_tokens": MAX_TOKENS, "ignore_eos": True}
WORDS = [
    *("--temperature", "0.8", "--max-tokens", str(MAX_TOKENS), "--ignore-eos"),
    *("--max-model-len", "64", "--max-num-seqs", "64"),
]
MOST_OVERHEAD = 0.10


def write_prompts(path: Path, count: int) -> None:
    """Write short prompts, all different."""
    path.write_text("".join(json.dumps(f"def f{number}(x):") + "\n" for number in range(count)))


def actors(home: Path) -> Iterator[int]:
    """Yield the process ids of the actors under this home, and of no others."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title = (process / "cmdline").read_bytes()
            if b"ray::Worker" in title and f"HOME={home}".encode() in (
                process / "environ"
            ).read_bytes().split(b"\0"):
                yield int(process.name)
        except OSError:
            continue  # it has ended


def killed_run(folder: Path, model: str, every: float, words: list[str], log: Path) -> list[int]:
    """Complete a file by two actors and kill one at random from time to time; return their ids."""
    chance, victims = random.Random(0), []
    command = [*NAMESPACE, sys.executable, "-m", "specjax", "generate", "--model", model, *words]
    command += ["--engine", "ray", "--num-actors", "2"]
    with log.open("w") as errors:
        running = subprocess.Popen(command, stderr=errors, env={**os.environ, "HOME": str(folder)})
        try:
            while running.poll() is None:
                try:
                    running.wait(every)
                except subprocess.TimeoutExpired:
                    alive = sorted(actors(folder))
                    if alive:
                        victims.append(chance.choice(alive))
                        os.kill(victims[-1], signal.SIGKILL)
        finally:
            running.terminate()
    if running.returncode:
        raise SystemExit(f"exit code {running.returncode}: {log.read_text()[-2000:]}")
    return victims


def merged(folder: Path) -> str:
    """Merge a job's folder; return what the command says."""
    command = [sys.executable, "-m", "specjax", "merge", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.split(": ", 1)[1].strip()


def trial(count: int, every: float, shard_size: int, say) -> None:
    """Do what the module's first lines say. Raises SystemExit for what must not be."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, prompts = write_pair(folder).target, folder / "prompts.jsonl"
        write_prompts(prompts, count)
        words = ["--prompt-file", str(prompts), "--shard-size", str(shard_size), *WORDS]
        start = time.monotonic()
        ray = [*words, "--out", str(folder / "ray")]
        victims = killed_run(folder, model, every, ray, folder / "log")
        lines = (folder / "log").read_text().splitlines()
        done = [line for line in lines if re.match(r"shard \d+ \(", line)]
        by = {actor: sum(f"by actor {actor}:" in line for line in done) for actor in (0, 1)}
        say(f"two actors: {time.monotonic() - start:.0f} s, {len(victims)} killed, shards {by}")
        say(done[-1])
        theirs = merged(folder / "ray")
        say(f"merged: {theirs}")
        start, own = time.monotonic(), [*words, "--out", str(folder / "own")]
        command = [sys.executable, "-m", "specjax", "generate", "--model", model, *own]
        subprocess.run(command, check=True, capture_output=True)
        say(f"one process: {time.monotonic() - start:.0f} s")
        ours = merged(folder / "own")
        say(f"merged: {ours}")
        if not victims:
            raise SystemExit("nobody was killed: no trial")
        if ours != theirs:
            raise SystemExit("the merged files differ")


def seconds_per_token(done: Iterable[Done]) -> float:
    """Return the wall time per token after the first shard, which starts the engine."""
    turns = iter(done)
    next(turns)
    start, tokens = time.monotonic(), 0
    for one in turns:
        tokens += one.num_tokens
    return (time.monotonic() - start) / tokens


def overhead(rounds: int, shard_size: int, say) -> None:
    """Compare one actor with this process, in turns. Raises SystemExit if it is too slow."""
    from specjax.jobs.on_ray import complete_on_ray

    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, prompts = write_pair(folder).target, folder / "prompts.jsonl"
        num_shards = 1 + 8
        write_prompts(prompts, num_shards * shard_size)
        file = read_file(prompts, shard_size)
        setting = Setting(model, OPTIONS, SAMPLING, file, folder / "out", "overhead")
        worker = Worker(setting)
        for number in range(rounds):
            here = seconds_per_token(worker.complete(shard) for shard in range(num_shards))
            there = seconds_per_token(
                done for _, done in complete_on_ray(setting, range(num_shards), 1)
            )
            ratios.append(there / here - 1)
            say(
                f"round {number + 1}: {1e6 * here:.1f} us a token in one process, "
                f"{1e6 * there:.1f} us in one actor: {ratios[-1]:+.1%}"
            )
    middle = statistics.median(ratios)
    say(f"overhead of an actor per token, median of {rounds} rounds: {middle:+.1%}")
    if middle > MOST_OVERHEAD:
        raise SystemExit(f"more than {MOST_OVERHEAD:.0%}")


def main() -> None:
    """Try it, judge it, keep the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=100_000)
    parser.add_argument("--every", type=float, default=20.0, help="Seconds between kills.")
    parser.add_argument("--shard-size", type=int, default=500)
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--rounds", type=int, default=5, help="Of --overhead.")
    parser.add_argument("--log", type=Path)
    chosen = parser.parse_args()
    if not has_namespace():
        raise SystemExit("unshare -n is refused: run as root")
    name = "ray_overhead.log" if chosen.overhead else "killed_actors.log"
    log = chosen.log or Path(__file__).with_name(name)
    if chosen.overhead and "SPECJAX_INSIDE" not in os.environ:
        inside = {**os.environ, "SPECJAX_INSIDE": "1"}
        with tempfile.TemporaryDirectory() as home:
            command = [*NAMESPACE, sys.executable, "-m", "tests.jobs.killed_actors"]
            done = subprocess.run([*command, *sys.argv[1:]], env={**inside, "HOME": home})
        raise SystemExit(done.returncode)
    kept: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        kept.append(line)

    verdict: object = "it did not end"
    try:
        if chosen.overhead:
            say(f"one Ray actor beside one process; shards of {chosen.shard_size} prompts")
            overhead(chosen.rounds, chosen.shard_size, say)
        else:
            say(
                f"{chosen.prompts} prompts of {MAX_TOKENS} tokens in shards of "
                f"{chosen.shard_size}; one of two actors is killed every {chosen.every:g} s"
            )
            trial(chosen.prompts, chosen.every, chosen.shard_size, say)
        verdict = "passed"
    except SystemExit as error:
        verdict = f"failed: {error}"
    finally:
        say(str(verdict))
        log.write_text("\n".join(kept) + "\n", encoding="utf-8")
    raise SystemExit(verdict != "passed")


if __name__ == "__main__":
    main()
