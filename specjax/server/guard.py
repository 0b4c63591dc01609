"""What every request passes before anything of it is parsed: its key, its type, its size."""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specjax.server.errors import Refusal, error_body

OPEN = ("/", "/health", "/metrics", "/version")  # these need no key
MOST_BYTES = 8 * 2**20  # of a body
MOST_SECONDS = 60.0  # for a body to arrive


class Guard:
    """ASGI middleware: refuses without a key (401), by type (415), size (413), time (408).

    Keys are compared as digests in constant time. A page from elsewhere cannot make a browser
    send JSON here without asking first, so nothing but JSON is taken.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str] = (), most_bytes: int = MOST_BYTES):
        self.app, self.most_bytes = app, most_bytes
        self.digests = [digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or refuse it."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            self.check(scope["method"], scope["path"], Headers(scope=scope))
        except Refusal as error:
            body = error_body(error.status_code, error.detail)
            close = {"Connection": "close"}  # what is left of the body is not read
            return await JSONResponse(body, error.status_code, close)(scope, receive, send)
        return await self.app(scope, self.limited(receive), send)

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Raise Refusal for what the headers alone show."""
        if self.digests and path not in OPEN and not self.knows(headers.get("authorization", "")):
            raise Refusal(401, "a valid API key is needed: Authorization: Bearer KEY.")
        if method != "POST":
            return
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, "the body must be JSON: Content-Type: application/json.")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.most_bytes:
            raise self.too_large()

    def knows(self, authorization: str) -> bool:
        """Compare a key with all of ours, without telling by time how much of it fits."""
        scheme, _, key = authorization.partition(" ")
        said = digest(key.encode("latin-1"))  # as it came over the wire
        found = [hmac.compare_digest(said, known) for known in self.digests]
        return scheme.lower() == "bearer" and any(found)

    def limited(self, receive: Receive) -> Receive:
        """Wrap what reads the body: it may be neither endless nor slow."""
        size, whole, until = 0, False, time.monotonic() + MOST_SECONDS

        async def read() -> Message:
            nonlocal size, whole
            if whole:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), until - time.monotonic())
            except TimeoutError:
                raise Refusal(408, f"the body did not arrive in {MOST_SECONDS:g} s.") from None
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if size > self.most_bytes:
                raise self.too_large()
            return message

        return read

    def too_large(self) -> Refusal:
        """Say how much is too much."""
        return Refusal(413, f"the body is larger than {self.most_bytes} bytes.")


def digest(key: bytes) -> bytes:
    """Return what keys are compared by."""
    return hashlib.sha256(key).digest()
