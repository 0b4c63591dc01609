"""``make balancer``: two replicas behind HAProxy or nginx, of which one is killed, then drained.

With the files of docs/deploy, their addresses replaced. Under 32 streams one replica is killed
(SIGKILL): the streams that had begun there break, all others have their text, from the other
replica if need be. Under 32 more it is told to end (SIGTERM): none breaks. Then 2,000 requests,
whole and streamed: every greedy text is the one that a replica gave alone.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from specjax.bundled import prompts
from tests.server.processes import PATIENCE, free_port
from tests.server.running import ask

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
KINDS = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf"}
NAMES = ("one", "two")  # of the replicas, which their responses bear
MODEL = "specjax"  # what clients call it
CONCURRENCY = 48
AROUND = """daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/specjax.conf;
}}
"""


class Replica:
    """A server of its own process, which may be ended and started again at the same port."""

    def __init__(self, name: str, model: str, options: Sequence[str]):
        self.name, self.port = name, free_port()
        self.command = [
            *("serve", model, "--port", str(self.port), *options),
            *("--served-model-name", name, "--served-model-name", MODEL),
            *("--seed", str(NAMES.index(name)), "--allowed-hosts", "test"),
        ]
        self.process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        """Return its own address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; ``wait`` returns when it answers."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "specjax", *self.command], stderr=subprocess.DEVNULL
        )

    def wait(self) -> None:
        """Wait until it answers."""
        until = time.monotonic() + PATIENCE
        while not answers(f"{self.url}/health"):
            if self.process is None or self.process.poll() is not None:
                raise SystemExit(f"replica {self.name} did not start")
            if time.monotonic() > until:
                raise SystemExit(f"replica {self.name} does not answer")
            time.sleep(0.1)

    def stop(self) -> None:
        """Kill it, if it still runs."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


def answers(url: str) -> bool:
    """Return whether a request gets a status 200."""
    try:
        return httpx.get(url, timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False


def configure(kind: str, folder: Path, ports: Sequence[int], port: int) -> list[str]:
    """Write a balancer's files, docs/deploy's with these addresses; return its command."""
    text = (DEPLOY / KINDS[kind]).read_text()
    changes = {"*:8000": f"127.0.0.1:{port}", "listen 8000": f"listen 127.0.0.1:{port}"}
    changes |= {f"10.0.0.{i}:8000": f"127.0.0.1:{one}" for i, one in enumerate(ports, start=1)}
    for old, new in changes.items():
        text = text.replace(old, new)
    if kind == "haproxy":
        (folder / "haproxy.cfg").write_text(text)
        return [program("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")]
    (folder / "specjax.conf").write_text(text)
    (folder / "nginx.conf").write_text(AROUND.format(folder=folder))
    return [program("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf")]


def program(kind: str) -> str:
    """Return the path of a balancer's program, which Debian keeps in /usr/sbin; "": absent."""
    return shutil.which(kind, path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""


@contextlib.contextmanager
def balanced(kind: str, replicas: Sequence[Replica]) -> Iterator[str]:
    """Run the replicas and a balancer before them; yield its address."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for one in replicas:  # the second finds the programs that the first has compiled
            one.start()
            stack.callback(one.stop)
            one.wait()
        port = free_port()
        command = configure(kind, Path(folder), [one.port for one in replicas], port)
        balancer = stack.enter_context(subprocess.Popen(command))
        stack.callback(balancer.terminate)
        url = f"http://127.0.0.1:{port}"
        wait_for_both(url)
        yield url


def wait_for_both(url: str) -> None:
    """Wait until the balancer sends requests to both replicas."""
    until, seen = time.monotonic() + PATIENCE, set()
    while len(seen) < len(NAMES):
        if time.monotonic() > until:
            raise SystemExit(f"only {seen} answer through the balancer")
        with contextlib.suppress(httpx.TransportError):
            reply = httpx.post(f"{url}/v1/completions", json={"prompt": [7], "max_tokens": 1})
            seen |= {reply.json()["model"]} if reply.status_code == 200 else set()
        time.sleep(0.05)


class Stream:
    """A stream: who gave its first token, its text, and whether it came to its end."""

    def __init__(self):
        self.replica, self.text, self.whole = None, "", False
        self.status = 0

    async def run(self, client: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> None:
        """Read it to its end, or to where it breaks."""
        asked = {**body, "stream": True}
        with contextlib.suppress(httpx.TransportError):
            async with client.stream("POST", f"{url}/v1/completions", json=asked) as reply:
                self.status = reply.status_code
                async for line in reply.aiter_lines():
                    if line.startswith("data: {"):
                        self.take(line)
                    self.whole |= line == "data: [DONE]"

    def take(self, line: str) -> None:
        """Read one event."""
        event = httpx.Response(200, content=line[6:]).json()
        self.replica = event["model"]
        self.text += event["choices"][0]["text"]


class Trial(NamedTuple):
    """What is tried."""

    kind: str  # of balancer, one of KINDS
    model: str
    options: Sequence[str]  # of specjax serve
    long: Sequence[Mapping[str, Any]]  # bodies of the streams that are disturbed
    short: Sequence[Mapping[str, Any]]  # of the other requests
    num_requests: int
    busy: int  # streams that both replicas run together


class Outcome(NamedTuple):
    """What became of streams, and of requests sent then, when something happened to a replica."""

    begun: int  # streams that had a first token when it happened
    broken: int
    whole: Counter[str]  # streams by the replica that wrote them
    answered: Counter[str]  # requests by replica
    wrong: list[str]  # what must not be

    def __str__(self) -> str:
        return (
            f"{self.begun} had begun; {self.broken} broke, {self.whole.total()} have their text, "
            f"from {dict(sorted(self.whole.items()))}; {self.answered.total()} new requests: from "
            f"{dict(sorted(self.answered.items()))}"
        )


async def disturb(
    url: str,
    chosen: Trial,
    texts: tuple[Sequence[str], Sequence[str]],
    happens: Callable[[], None],
    victim: str | None,
) -> Outcome:
    """Stream all long bodies; when ``busy`` have begun, let something happen, and send the others.

    Args:
        texts: of the long and of the short bodies.
        victim: the replica whose begun streams may break; None: none may.
    """
    streams = [Stream() for _ in chosen.long]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as client:
        work = [
            asyncio.create_task(one.run(client, url, body))
            for one, body in zip(streams, chosen.long, strict=True)
        ]
        while sum(one.replica is not None for one in streams) < chosen.busy:
            if all(one.done() for one in work):
                break
            await asyncio.sleep(0.001)
        happens()
        begun = sum(one.replica is not None for one in streams)
        answered, wrong = await load(url, chosen.short, texts[1], len(chosen.short))
        await asyncio.gather(*work)
    for number, (one, text) in enumerate(zip(streams, texts[0], strict=True)):
        if not one.whole and one.replica != victim:
            wrong.append(f"stream {number} of {one.replica} broke, status {one.status}")
        if not text.startswith(one.text) or (one.whole and one.text != text):
            wrong.append(f"stream {number} of {one.replica} has another text")
    whole = Counter(str(one.replica) for one in streams if one.whole)
    return Outcome(begun, len(streams) - whole.total(), whole, answered, wrong)


async def load(
    url: str, bodies: Sequence[Mapping[str, Any]], expected: Sequence[str], count: int
) -> tuple[Counter, list[str]]:
    """Send requests, whole and streamed; return who answered and what must not be."""
    chance, gate = random.Random(0), asyncio.Semaphore(CONCURRENCY)
    by, wrong = Counter(), []

    async def one(number: int) -> None:
        which, streamed = number % len(bodies), chance.random() < 0.5
        async with gate:
            reply = await ask(url, "/v1/completions", {**bodies[which], "stream": streamed})
        assert reply is not None
        if reply.status != 200:
            wrong.append(f"request {number}: status {reply.status}")
            return
        events = reply.events() if streamed else [reply.json()]
        by[events[0]["model"]] += 1
        if "".join(event["choices"][0]["text"] for event in events) != expected[which]:
            wrong.append(f"request {number}: another text from {events[0]['model']}")

    await asyncio.gather(*(one(number) for number in range(count)))
    return by, wrong


async def alone(url: str, bodies: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts of requests that a replica is sent one at a time."""
    texts = []
    for body in bodies:
        reply = await ask(url, "/v1/completions", body)
        assert reply is not None
        assert reply.status == 200, reply.body
        texts.append(reply.json()["choices"][0]["text"])
    return texts


def greedy(texts: Sequence[str | list[int]], max_tokens: int) -> list[dict[str, Any]]:
    """Return bodies of greedy requests."""
    facts = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return [{"prompt": text, **facts} for text in texts]


def run_trial(chosen: Trial, say: Callable[[str], None]) -> list[str]:
    """Do all that the module's first lines say; return what must not be."""
    one, two = replicas = [Replica(name, chosen.model, chosen.options) for name in NAMES]
    for replica in replicas:
        say(f"specjax {' '.join(replica.command)}")
    wrong: list[str] = []
    with balanced(chosen.kind, replicas) as url:
        texts = asyncio.run(alone(one.url, chosen.long)), asyncio.run(alone(two.url, chosen.short))
        for number in (signal.SIGKILL, signal.SIGTERM):
            victim = one.name if number is signal.SIGKILL else None
            assert one.process is not None
            happens = partial(one.process.send_signal, number)
            found = asyncio.run(disturb(url, chosen, texts, happens, victim))
            code = one.process.wait(PATIENCE)
            say(f"{number.name} of one under {len(chosen.long)} streams: {found}; exit code {code}")
            wrong += found.wrong
            if victim and not found.broken:
                wrong.append("nothing ran on the replica that was killed: no trial")
            if code != (-number if victim else 0):
                wrong.append(f"exit code {code}")
            one.start()
            one.wait()
            wait_for_both(url)
        by, failed = asyncio.run(load(url, chosen.short, texts[1], chosen.num_requests))
        say(
            f"{chosen.num_requests} requests, {CONCURRENCY} at a time, whole and streamed, from "
            f"{dict(sorted(by.items()))}, {len(failed)} failed or have another text"
        )
        wrong += failed
    return wrong


def version(kind: str) -> str:
    """Return the first line of what a balancer's -v prints."""
    done = subprocess.run([program(kind), "-v"], capture_output=True, text=True, check=True)
    return (done.stdout + done.stderr).splitlines()[0]


def main() -> None:
    """Try the balancer, judge it, keep the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=list(KINDS), default="haproxy")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--log", type=Path)
    chosen = parser.parse_args()
    if not program(chosen.kind):
        raise SystemExit(f"{chosen.kind} is not installed: apt-get install {chosen.kind}")
    log = chosen.log or Path(__file__).with_name(f"balancer-{chosen.kind}.log")
    kept: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        kept.append(line)

    say(f"{version(chosen.kind)}; docs/deploy/{KINDS[chosen.kind]}, its addresses replaced")
    texts, slots = [entry["turns"][0][:300] for entry in prompts()], 8
    options = ["--max-model-len", "512", "--max-num-seqs", str(slots)]
    wrong = run_trial(
        Trial(
            kind=chosen.kind,
            model="bundled",
            options=[*options, "--max-num-queued-reqs", "64"],
            long=greedy([f"# {i}\n{texts[i % len(texts)]}" for i in range(chosen.streams)], 256),
            short=greedy(texts, 24),
            num_requests=chosen.requests,
            busy=2 * slots,
        ),
        say,
    )
    for line in wrong:
        say(line)
    say("passed" if not wrong else f"failed: {len(wrong)} faults")
    log.write_text("\n".join(kept) + "\n", encoding="utf-8")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
