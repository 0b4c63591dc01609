"""Load a server with completions: every server is loaded and timed by this client."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from specjax.measure.load import closed_loop, open_loop, poisson_arrivals
from specjax.measure.streaming import StreamFailed, open_session, stream_completion

PATH = "/v1/completions"


class TimedCompletion(NamedTuple):
    """One streamed completion and its times."""

    text: str
    num_tokens: int
    first: float  # seconds from the request to the first chunk, connecting included
    seconds: float  # ... to the last
    metrics: Mapping[str, Any]  # the server's own times, if it reports them

    @property
    def times(self) -> dict[str, float]:
        """Its times [s], by the names of ``measure.objectives``."""
        later = (self.seconds - self.first) / max(self.num_tokens - 1, 1)
        return {"ttft": self.first, "tpot": later, "e2el": self.seconds}


class Load(NamedTuple):
    """A server's completions of a number of requests, and the seconds for all."""

    completions: list[TimedCompletion]
    seconds: float

    @property
    def speed(self) -> float:
        """Output tokens per second."""
        return sum(one.num_tokens for one in self.completions) / self.seconds

    @property
    def rate(self) -> float:
        """Completed requests per second."""
        return len(self.completions) / self.seconds


Bodies = Sequence[Mapping[str, Any]]
Complete = Callable[[Mapping[str, Any]], Awaitable[TimedCompletion]]


def load(url: str, bodies: Bodies, concurrency: int) -> Load:
    """Return the completions of the requests, sent in order, ``concurrency`` at a time.

    Every request has its own connection. Raises ConnectionError for an answer that is no stream
    of completions.
    """
    return timed(
        url, concurrency, lambda complete, start: closed_loop(complete, bodies, concurrency)
    )


def load_at_rate(url: str, bodies: Bodies, rate: float, seed: int) -> Load:
    """Return the completions of requests that arrive at random, ``rate`` per second.

    Equal seeds give equal arrivals, those of a Poisson process. Raises as ``load`` does.
    """
    arrivals = poisson_arrivals(rate, len(bodies), seed)

    def arrive(complete: Complete, start: float) -> Awaitable[list[TimedCompletion]]:
        return open_loop(complete, bodies, [start + one for one in arrivals])

    return timed(url, len(bodies), arrive)


def timed(
    url: str,
    connections: int,
    loop: Callable[[Complete, float], Awaitable[list[TimedCompletion]]],
) -> Load:
    """Return what ``loop`` completes; it is called with the client and the time it starts at."""

    async def everything() -> Load:
        async with open_session(url, connections=connections, keep_alive=False) as session:

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

            start = time.perf_counter()
            completions = await loop(complete, start)
            return Load(completions, time.perf_counter() - start)

    return asyncio.run(everything())
