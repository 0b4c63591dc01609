"""The least client of a streaming server: every server is loaded and timed by the same one."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PATH = "/v1/completions"


class Told(NamedTuple):
    """What one streamed completion said, and when."""

    text: str
    num_tokens: int
    first: float  # seconds from sending to the first chunk
    seconds: float  # ... to the last
    metrics: Mapping[str, Any]  # the server's own times, where it tells them


class Load(NamedTuple):
    """What a server did with a number of requests."""

    told: list[Told]
    seconds: float

    @property
    def speed(self) -> float:
        """Output tokens per second."""
        return sum(one.num_tokens for one in self.told) / self.seconds


def load(url: str, bodies: Sequence[Mapping[str, Any]], concurrency: int) -> Load:
    """Send the requests in order, ``concurrency`` at a time; the next as soon as one is done.

    Raises ConnectionError for an answer that is no stream of completions.
    """

    async def everything() -> list[Told]:
        waiting, told = iter(enumerate(bodies)), {}

        async def work() -> None:
            for i, body in waiting:
                told[i] = await complete(url, body)

        await asyncio.gather(*(work() for _ in range(concurrency)))
        return [told[i] for i in range(len(bodies))]

    start = time.perf_counter()
    told = asyncio.run(everything())
    return Load(told, time.perf_counter() - start)


async def complete(url: str, body: Mapping[str, Any]) -> Told:
    """Stream one completion over a connection of its own."""
    address = urlsplit(url)
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    content = json.dumps(asked).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=2**20)
    try:
        writer.write(head.encode() + content)
        lines = []
        while line := await reader.readline():
            lines.append((time.perf_counter() - start, line))
    finally:
        writer.close()
    data = [(when, line[6:].strip()) for when, line in lines if line.startswith(b"data: ")]
    if not data or data[-1][1] != b"[DONE]":
        said = b"".join(line for _, line in lines)[-300:]
        raise ConnectionError(f"{url} did not complete {PATH}: {said.decode(errors='replace')}")
    chunks = [(when, json.loads(line)) for when, line in data[:-1]]
    texts = [(when, one["choices"][0]["text"]) for when, one in chunks if one["choices"]]
    last = chunks[-1][1]
    return Told(
        text="".join(text for _, text in texts),
        num_tokens=last["usage"]["completion_tokens"],
        first=texts[0][0],
        seconds=texts[-1][0],
        metrics=last.get("metrics") or {},
    )
