"""Send request streams to clients: full responses, or server-sent events as tokens come.

A client that disconnects aborts its samples.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from specjax.engine.service import Delta, Failed, FormFailed
from specjax.server.errors import APIError, error_body
from specjax.server.metrics import Meters
from specjax.server.responses import ResponseBuilder

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class TimedOut(Failed):
    """The request took longer than it may."""


def status_of(error: Failed) -> int:
    """Return a failure's HTTP status: 504 out of time, 400 by the request's grammar, else 500."""
    if isinstance(error, FormFailed):
        return 400
    return 504 if isinstance(error, TimedOut) else 500


@asynccontextmanager
async def in_time(builder: ResponseBuilder) -> AsyncIterator[None]:
    """Limit what is awaited here to a request's time. Raises TimedOut."""
    try:
        async with asyncio.timeout_at(builder.deadline):
            yield
    except TimeoutError:
        raise TimedOut(f"the request took longer than {builder.seconds:g} s.") from None


async def merge_streams(
    builder: ResponseBuilder, meters: Meters
) -> AsyncIterator[tuple[int, Delta]]:
    """Yield (index of the choice, delta) from all streams of a request, as they come.

    While the reader is busy, a stream merges its deltas, so that a slow reader takes no memory.

    Raises:
        Failed: a sample failed.
        TimedOut: the request took too long.
    """
    queue: asyncio.Queue[tuple[int, Delta | Exception]] = asyncio.Queue(1)

    async def follow(index: int) -> None:
        stream, num_tokens, last = builder.streams[index], 0, None
        try:
            async for delta in stream:
                now, num_tokens = time.perf_counter(), num_tokens + len(delta.token_ids)
                if last is not None:
                    meters.observe_gap(now - last)
                last = now
                if delta.finish_reason is not None:
                    meters.observe(stream, num_tokens)
                    if builder.traced is not None:
                        builder.traced(stream, num_tokens, builder.named["id"])
                await queue.put((index, delta))
        except Exception as error:
            await queue.put((index, error))

    left = len(builder.streams)
    tasks = [asyncio.create_task(follow(index)) for index in range(left)]
    try:
        while left:
            async with in_time(builder):
                index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            left -= item.finish_reason is not None
            yield index, item
    finally:
        for task in tasks:
            task.cancel()


async def full_response(
    request: Request,
    builder: ResponseBuilder,
    meters: Meters,
    make: Callable[[], dict[str, Any]],
) -> Response:
    """Return ``make()`` when all samples have finished; abort them if the client disconnects."""

    async def drain() -> bool:
        async for _ in merge_streams(builder, meters):
            pass
        return True

    try:
        if await until_disconnected(request, drain()) is None:
            return Response(status_code=400)  # the client does not read it
        return Response(to_json(make()), media_type="application/json")
    except Failed as error:
        raise APIError(status_of(error), str(error)) from None
    finally:
        abort(builder)


async def event_response(
    request: Request, builder: ResponseBuilder, events: AsyncIterator[bytes]
) -> Response:
    """Return a stream of events, once it has a first token: its status says that it runs.

    A request that waits has no status yet, so that a load balancer may send it to another server
    if this one goes away, and a request that fails at once is an error.
    """
    ready = [asyncio.ensure_future(stream.ready()) for stream in builder.streams]
    first = asyncio.wait(ready, return_when=asyncio.FIRST_COMPLETED)
    try:
        async with in_time(builder):
            came = await until_disconnected(request, first)
        if came is None:
            abort(builder)
            return Response(status_code=400)  # the client does not read it
        for one in ready:
            if one.done():
                one.result()
    except Failed as error:
        abort(builder)
        raise APIError(status_of(error), str(error)) from None
    finally:
        for one in ready:
            one.cancel()
    return EventResponse(builder, events)


async def until_disconnected(request: Request, work: Awaitable[T]) -> T | None:
    """Return the result of some work; cancel it and return None if the client disconnects."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(disconnected(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()


async def disconnected(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventResponse(StreamingResponse):
    """Sends server-sent events, one per chunk; aborts the samples however it ends."""

    def __init__(self, builder: ResponseBuilder, events: AsyncIterator[bytes]):
        super().__init__(events, media_type="text/event-stream", headers=UNBUFFERED)
        self.builder = builder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the last one, or until the client disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            abort(self.builder)


async def stream_events(builder: ResponseBuilder, meters: Meters) -> AsyncIterator[bytes]:
    """Yield the events of a response: its chunks, the usage if it is wanted, and [DONE]."""
    try:
        async for index, delta in merge_streams(builder, meters):
            yield event(builder.chunk(index, delta))
        options = builder.body.stream_options
        if options is not None and options.include_usage:
            yield event(builder.last_chunk())
    except Failed as error:
        yield event(error_body(status_of(error), str(error)))
    yield DONE


def event(content: dict[str, Any]) -> bytes:
    """Return the bytes of one event."""
    return b"data: " + to_json(content) + b"\n\n"


def named_event(content: dict[str, Any]) -> bytes:
    """Return the bytes of one event that is named after its type."""
    return f"event: {content['type']}\n".encode() + event(content)


def abort(builder: ResponseBuilder) -> None:
    """Abort the samples that are still running."""
    for stream in builder.streams:
        if stream.times.finished is None:
            stream.abort()
