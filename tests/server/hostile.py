"""``make hostile``: a server under hostile requests, beside a client that behaves.

What the OpenAPI document allows, damage to it, bodies that are no JSON, headers that lie, clients
that leave or never finish. Nothing may fail (a status 5xx that is not 503), hang, or stay in
memory, and the other client's greedy answers stay the same.

All are sent twice: the first requests with a grammar, or with log probabilities of a prompt,
compile programs, which stay. So memory is judged the second time.
"""

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.server.running import ask
from tests.server.schema import JUNK, values
from tests.server.soak import Line, judge, look, wait_for

PATIENCE = 60.0  # seconds; an answer that takes longer is a hang; more on a busy machine
MOST_SHOWN = 2000  # bytes of a request whose outcome must not be
CONCURRENCY, NUM_LINES = 16, 50  # requests at a time; looks at the process
GREEDY = {"prompt": "def add(a, b):", "max_tokens": 16, "temperature": 0}
SMALL = {"max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2, "n": 1}
RAW = (
    b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 99999999999\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: -1\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"DELETE /v1/models HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n",
)
BODIES = (  # of more than one kind of trouble each
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"prompt": "\xff\xfe"}',
    b'{"prompt": "x", "max_tokens": 1e999}',
    b'{"prompt": [' + b"{}," * 200_000 + b"{}]}",
    b'{"messages": [' + b"1," * 500_000 + b'1], "max_tokens": 1}',
    b'{"prompt": "x", "stop_token_ids": [' + b'"a",' * 300_000 + b'"a"]}',
    b'{"prompt": "x", "structured_outputs": {"regex": "(a+)+(b*)*$"}, "max_tokens": 2}',
    b'{"prompt": "x", "structured_outputs": {"grammar": "start: start"}, "max_tokens": 2}',
    b'{"prompt": "x", "logit_bias": {' + b'"1": 1,' * 100_000 + b'"1": 1}}',
    b'{"prompt": "x", "bad_words": ["' + b"y" * 500_000 + b'"]}',
)


class Case(NamedTuple):
    """A hostile request; one without a path is bytes as they are."""

    path: str
    body: bytes
    leave_after: int | None = None


class Outcome(NamedTuple):
    """What came of an attack."""

    statuses: Counter
    lines: list[Line]  # of the process, as it went
    num_same: int  # answers of the other client, all the same
    faults: list[str]  # what must not be, each with its request


def cases(document: dict[str, Any], count: int) -> list[Case]:
    """Return hostile requests to the addresses of an OpenAPI document, the same every time."""
    posts = {
        path: methods["post"]["requestBody"]["content"]["application/json"]["schema"]
        for path, methods in document["paths"].items()
        if "requestBody" in methods.get("post", ())
    }
    known = {
        name
        for one in document["components"]["schemas"].values()
        for name in one.get("properties", ())
    }
    shaped = [st.tuples(st.just(path), values(one, document)) for path, one in posts.items()]
    damage = st.dictionaries(st.sampled_from(sorted(known)), JUNK, max_size=2)
    found: list[Case] = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(st.one_of(shaped), damage))
    def collect(case: Any) -> None:
        (path, body), more = case
        whole = {**body, **SMALL, **more} if isinstance(body, dict) else body
        found.append(Case(path, json.dumps(whole).encode()))

    collect()
    chance, paths = random.Random(0), sorted(posts)
    while len(found) < count:
        found.append(Case(chance.choice(paths), chance.choice(BODIES)))
    for number in range(0, len(found), 5):  # every fifth is of another kind
        old = found[number]
        found[number] = chance.choice(
            [
                Case("", chance.choice(RAW)),
                Case(chance.choice(paths), chance.choice(BODIES)),
                old._replace(leave_after=chance.choice([0, 100])),
            ]
        )
    chance.shuffle(found)
    return found[:count]


async def send(url: str, case: Case, patience: float) -> tuple[str, bytes]:
    """Send a case; return the status, or how the connection ended, and the answer's body."""
    try:
        async with asyncio.timeout(patience):
            if not case.path:
                return await send_raw(url, case.body), b""
            reply = await ask(url, case.path, case.body, leave_after=case.leave_after)
            return ("left", b"") if reply is None else (str(reply.status), reply.body)
    except TimeoutError:
        return "hang", b""
    except (ConnectionError, IndexError):
        return "closed", b""  # a refused body may end the connection while it is being sent


async def send_raw(url: str, data: bytes) -> str:
    """Send bytes, and leave after the beginning of what comes back."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        await writer.drain()
        try:
            head = await asyncio.wait_for(reader.read(64), 2.0)
        except TimeoutError:
            return "waits"  # for the rest of a request that never comes
        return head.split()[1].decode() if head.startswith(b"HTTP/") else "closed"
    finally:
        writer.close()


async def attack(
    url: str, found: Sequence[Case], process: Path, patience: float = PATIENCE
) -> Outcome:
    """Send all cases, some at once, and greedy requests meanwhile.

    Raises:
        AssertionError: a greedy answer has changed, or did not come.
    """

    async def greedy() -> str:
        async with asyncio.timeout(patience):
            reply = await ask(url, "/v1/completions", GREEDY)
        assert reply is not None
        assert reply.status in (200, 503), reply.body
        return reply.json()["choices"][0]["text"] if reply.status == 200 else expected

    expected = ""
    expected = await greedy()
    statuses, lines, num_same, faults = Counter[str](), list[Line](), 0, list[str]()
    chunk = max(len(found) // NUM_LINES, 1)
    left, done, start = list(found), asyncio.Event(), asyncio.get_running_loop().time()

    async def hostile() -> None:
        while left:
            case = left.pop()
            status, body = await send(url, case, patience)
            statuses[status] += 1
            if is_fault(status):
                faults.append(f"{status}: {case.path} {case.body[:MOST_SHOWN]} -> {body[:300]}")
            if statuses.total() % chunk == 0:
                lines.append(look(process, start, statuses))

    async def behaved() -> None:
        nonlocal num_same
        while not done.is_set():
            assert await greedy() == expected, "a greedy answer has changed"
            num_same += 1

    other = asyncio.create_task(behaved())
    await asyncio.gather(*(hostile() for _ in range(CONCURRENCY)))
    done.set()
    await other
    return Outcome(statuses, lines, num_same, faults)


def is_fault(status: str) -> bool:
    """Return whether an outcome must not be: a 5xx other than 503, or a hang."""
    return status == "hang" or (status.startswith("5") and status != "503")


def main() -> None:
    """Start a server, attack it, judge it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for an answer")
    parser.add_argument("--log", type=Path, default=Path(__file__).with_name("hostile.log"))
    chosen = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["specjax", "serve", "bundled", "--port", str(port), "--max-model-len", "256"]
    command += ["--allowed-hosts", "test"]  # what the cases name in their Host header
    url, kept = f"http://127.0.0.1:{port}", [f"{' '.join(command)}; {chosen.requests} requests"]
    kept[0] += f", {chosen.patience:g} s for an answer"

    def say(line: str) -> None:
        print(line, flush=True)
        kept.append(line)

    verdict = "it did not end"
    try:
        with subprocess.Popen([sys.executable, "-m", *command, "--compile-all"]) as server:
            try:
                wait_for(port, server)
                document = json.load(urllib.request.urlopen(f"{url}/openapi.json"))
                found = cases(document, chosen.requests)
                for _ in range(2):
                    process = Path(f"/proc/{server.pid}")
                    outcome = asyncio.run(attack(url, found, process, chosen.patience))
                    report(outcome, say)
                say(judge(outcome.lines))
            finally:
                server.terminate()
        verdict = "passed" if server.returncode == 0 else f"exit code {server.returncode}"
    except (AssertionError, SystemExit) as error:
        verdict = f"failed: {error}"
    finally:
        say(verdict)
        chosen.log.write_text("\n".join(kept) + "\n", encoding="utf-8")
    if verdict != "passed":
        raise SystemExit(1)


def report(outcome: Outcome, say: Callable[[str], None]) -> None:
    """Print what came of an attack. Raises SystemExit for what must not be."""
    for line in outcome.lines:
        say(str(line))
    say(f"outcomes: {dict(sorted(outcome.statuses.items()))}")
    say(f"greedy answers beside them, all the same: {outcome.num_same}")
    for fault in outcome.faults:
        say(fault)
    if outcome.faults:
        raise SystemExit(f"{len(outcome.faults)} faults")


if __name__ == "__main__":
    main()
