"""From tickets to the socket: whole answers, or events as they come; whoever leaves is aborted."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from specjax.engine.service import Delta, Failed
from specjax.server.answers import Exchange
from specjax.server.errors import Refusal, error_body
from specjax.server.metrics import Meters

DONE = b"data: [DONE]\n\n"
UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def listen(exchange: Exchange, meters: Meters) -> AsyncIterator[tuple[int, Delta]]:
    """Yield what the tickets say as they say it, with the choice it belongs to.

    A ticket's deltas wait in the ticket, where they merge, until the one before is taken: a
    reader may be as slow as it likes. Raises ``Failed`` if one sample failed.
    """
    queue: asyncio.Queue[tuple[int, Delta | Exception]] = asyncio.Queue(1)

    async def follow(index: int) -> None:
        ticket, num_tokens, last = exchange.tickets[index], 0, None
        try:
            async for delta in ticket:
                now, num_tokens = time.perf_counter(), num_tokens + len(delta.token_ids)
                if last is not None:
                    meters.observe_gap(now - last)
                last = now
                if delta.finish_reason is not None:
                    meters.observe(ticket, num_tokens)
                await queue.put((index, delta))
        except Exception as error:
            await queue.put((index, error))

    left = len(exchange.tickets)
    tasks = [asyncio.create_task(follow(index)) for index in range(left)]
    try:
        while left:
            index, said = await queue.get()
            if isinstance(said, Exception):
                raise said
            left -= said.finish_reason is not None
            yield index, said
    finally:
        for task in tasks:
            task.cancel()


async def whole(request: Request, exchange: Exchange, meters: Meters) -> Response:
    """Answer when all is said; give up as soon as the client leaves."""

    async def hear() -> None:
        async for _ in listen(exchange, meters):
            pass

    hearing = asyncio.create_task(hear())
    leaving = asyncio.create_task(leave(request))
    try:
        await asyncio.wait((hearing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not hearing.done():
            return Response(status_code=400)  # to nobody
        hearing.result()
        return Response(to_json(exchange.answer()), media_type="application/json")
    except Failed as error:
        raise Refusal(500, str(error)) from None
    finally:
        hearing.cancel()
        leaving.cancel()
        abort(exchange)


async def leave(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Events(StreamingResponse):
    """Server-sent events, a chunk each; however the response ends, so do its tickets."""

    def __init__(self, exchange: Exchange, meters: Meters):
        events = speak(exchange, meters)
        super().__init__(events, media_type="text/event-stream", headers=UNBUFFERED)
        self.exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or as much as the client takes."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            abort(self.exchange)


async def speak(exchange: Exchange, meters: Meters) -> AsyncIterator[bytes]:
    """Yield the events: chunks, the usage if it was asked for, and an end mark."""
    try:
        async for index, delta in listen(exchange, meters):
            yield event(exchange.chunk(index, delta))
        options = exchange.asked.stream_options
        if options is not None and options.include_usage:
            yield event(exchange.last_chunk())
    except Failed as error:
        yield event(error_body(500, str(error)))
    yield DONE


def event(content: dict[str, Any]) -> bytes:
    """Write one event."""
    return b"data: " + to_json(content) + b"\n\n"


def abort(exchange: Exchange) -> None:
    """Stop what is still running."""
    for ticket in exchange.tickets:
        if ticket.times.finished is None:
            ticket.abort()
