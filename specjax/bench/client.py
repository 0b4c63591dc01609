"""Load a server with completions: every server is loaded and timed by this client."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specjax.measure.load import closed_loop
from specjax.measure.streaming import StreamFailed, open_session, stream_completion

PATH = "/v1/completions"


class TimedCompletion(NamedTuple):
    """One streamed completion and its times."""

    text: str
    num_tokens: int
    first: float  # seconds from the request to the first chunk, connecting included
    seconds: float  # ... to the last
    metrics: Mapping[str, Any]  # the server's own times, if it reports them


class Load(NamedTuple):
    """A server's completions of a number of requests, and the seconds for all."""

    completions: list[TimedCompletion]
    seconds: float

    @property
    def speed(self) -> float:
        """Output tokens per second."""
        return sum(one.num_tokens for one in self.completions) / self.seconds


def load(url: str, bodies: Sequence[Mapping[str, Any]], concurrency: int) -> Load:
    """Return the completions of the requests, sent in order, ``concurrency`` at a time.

    Every request has its own connection. Raises ConnectionError for an answer that is no stream
    of completions.
    """

    async def everything() -> list[TimedCompletion]:
        async with open_session(url, connections=concurrency, keep_alive=False) as session:

            async def complete(body: Mapping[str, Any]) -> TimedCompletion:
                start = time.perf_counter()
                try:
                    stream = await stream_completion(session, PATH, body)
                except StreamFailed as error:
                    raise ConnectionError(f"{url} did not complete {PATH}: {error}") from None
                if stream.output_tokens is None or not stream.times:
                    raise ConnectionError(f"{url} did not complete {PATH}: no tokens, or no usage")
                before = stream.sent - start
                return TimedCompletion(
                    text=stream.text,
                    num_tokens=stream.output_tokens,
                    first=before + stream.times[0],
                    seconds=before + stream.times[-1],
                    metrics=stream.metrics,
                )

            return await closed_loop(complete, bodies, concurrency)

    start = time.perf_counter()
    completions = asyncio.run(everything())
    return Load(completions, time.perf_counter() - start)
