"""Request ids: the client's own name for a request, in its response and in its headers."""

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"
VALID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


def request_id(headers: Headers) -> str | None:
    """Return the id in a request's headers; None if there is none, or no valid one."""
    name = headers.get(HEADER, "")
    return name if VALID.fullmatch(name) else None


class RequestIds:
    """ASGI middleware: sends the request's id back, or a new one (32 hexadecimal digits)."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and name its response."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        name = request_id(Headers(scope=scope)) or uuid.uuid4().hex

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = name
            await send(message)

        return await self.app(scope, receive, named)
