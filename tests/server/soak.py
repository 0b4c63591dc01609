"""``make soak``: a server under load for minutes, and what it holds on to.

Many clients stream, wait, sample, score and walk away; every few seconds the server's memory,
open files and memory maps are written down. What must not grow after the first fifth: all three.
"""

import argparse
import asyncio
import random
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from specjax.bundled import prompts
from tests.server.running import ask

EVERY = 10.0  # seconds
MOST_GROWTH = 1.05
NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}'
OPTIONS = ["--max-model-len", "256", "--max-num-seqs", "8", "--speculative-config", NGRAM]
OPTIONS += ["--allowed-hosts", "test"]  # what ``ask`` names in its Host header
TEXTS = [entry["turns"][0][:300] for entry in prompts()]


class Line(NamedTuple):
    """What the server holds at one moment."""

    seconds: float
    megabytes: float
    files: int
    maps: int
    done: int

    def __str__(self) -> str:
        return (
            f"{self.seconds:6.0f} s  {self.megabytes:7.1f} MB  {self.files:4} files  "
            f"{self.maps:6} maps  {self.done:7} requests"
        )


def look(process: Path, start: float, done: Counter) -> Line:
    """Read what Linux knows of a process."""
    resident = re.search(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())
    assert resident is not None
    return Line(
        seconds=time.monotonic() - start,
        megabytes=int(resident[1]) / 1024,
        files=len(list((process / "fd").iterdir())),
        maps=(process / "maps").read_bytes().count(b"\n"),
        done=done.total(),
    )


async def client(url: str, number: int, end: float, done: Counter) -> None:
    """Ask for one completion after the other; every tenth time leave early."""
    chance = random.Random(number)
    while time.monotonic() < end:
        body = {
            "prompt": chance.choice(TEXTS),
            "max_tokens": chance.randrange(1, 65),
            "temperature": chance.choice([0.0, 0.8]),
            "stream": chance.random() < 0.5,
            "seed": chance.randrange(2**31),
        }
        if chance.random() < 0.2:
            body |= {"logprobs": 2, "top_p": 0.9, "repetition_penalty": 1.1}
        leave = chance.choice([0, 200, 1000]) if chance.random() < 0.1 else None
        reply = await ask(url, "/v1/completions", body, leave_after=leave)
        done["left" if reply is None else str(reply.status)] += 1


async def soak(url: str, process: Path, minutes: float, concurrency: int, say) -> list[Line]:
    """Load the server and write down what it holds."""
    start, done, lines = time.monotonic(), Counter(), []
    end = start + 60 * minutes
    clients = [asyncio.create_task(client(url, i, end, done)) for i in range(concurrency)]
    while time.monotonic() < end:
        await asyncio.sleep(EVERY)
        lines.append(look(process, start, done))
        say(str(lines[-1]))
    await asyncio.gather(*clients)
    say(f"answers: {dict(sorted(done.items()))}")
    if set(done) - {"200", "left"}:
        raise SystemExit("some requests failed")
    return lines


def judge(lines: list[Line]) -> str:
    """Compare the last fifth with the second; raise SystemExit if anything has grown."""
    fifth = len(lines) // 5
    early, late = lines[fifth : 2 * fifth], lines[-fifth:]
    verdict = []
    for name in ("megabytes", "files", "maps"):
        before, after = (max(getattr(line, name) for line in part) for part in (early, late))
        verdict.append(f"{name} {before:.0f} -> {after:.0f}")
        if after > MOST_GROWTH * before + (name == "files") * 16:
            raise SystemExit(f"{verdict[-1]}: it grows")
    return f"flat (most in the second and in the last fifth): {', '.join(verdict)}"


def main() -> None:
    """Start a server, soak it, judge it, keep the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--log", type=Path, default=Path(__file__).with_name("soak.log"))
    chosen = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["specjax", "serve", "bundled", "--port", str(port), *OPTIONS]
    kept = [f"{' '.join(command)}; {chosen.concurrency} clients, {chosen.minutes:g} minutes"]

    def say(line: str) -> None:
        print(line, flush=True)
        kept.append(line)

    with subprocess.Popen([sys.executable, "-m", *command]) as server:
        try:
            wait_for(port, server)
            url, process = f"http://127.0.0.1:{port}", Path(f"/proc/{server.pid}")
            lines = asyncio.run(soak(url, process, chosen.minutes, chosen.concurrency, say))
            say(judge(lines))
        finally:
            server.terminate()
    say(f"exit code after SIGTERM: {server.returncode}")
    part = chosen.log.with_name(chosen.log.name + ".part")
    part.write_text("\n".join(kept) + "\n")
    part.replace(chosen.log)


def wait_for(port: int, server: subprocess.Popen) -> None:
    """Wait until somebody listens: the address is taken early and answers once all is compiled."""
    while server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    main()
