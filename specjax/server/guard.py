"""Check every request before it is parsed: its host, its API key and its size."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import time
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specjax.server.errors import APIError, respond

logger = logging.getLogger(__name__)
OPEN = ("/health", "/ping", "/version")  # accepted without a key
WATCHED = ("/", "/metrics")  # so are these, unless they are protected
MOST_BYTES = 8 * 2**20  # of a body
MOST_SECONDS = 60.0  # for a body to arrive


class Guard:
    """ASGI middleware: rejects another host (403), a missing key (401), large (413), slow (408).

    Keys are compared as digests in constant time.

    Args:
        hosts: the names in a Host header that are accepted, besides IP addresses and localhost;
            None accepts every name. A page whose name an attacker resolves to this machine (DNS
            rebinding) sends its own name.
        protect_metrics: ``/metrics`` and ``/`` need a key too; a browser asks for it as a password.

    Raises:
        ValueError: a key is empty.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Sequence[str] = (),
        most_bytes: int = MOST_BYTES,
        hosts: Sequence[str] | None = None,
        protect_metrics: bool = False,
    ):
        check_keys(keys)
        self.app, self.most_bytes, self.hosts = app, most_bytes, hosts
        self.open_paths = OPEN if protect_metrics else (*OPEN, *WATCHED)
        self.digests = [digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or respond with an error."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            self.check(scope["path"], Headers(scope=scope))
        except APIError as error:
            body = respond(scope["path"], error.status_code, error.detail)
            headers = {"Connection": "close"}  # what is left of the body is not read
            if error.status_code == 401 and scope["path"] in WATCHED:
                headers["WWW-Authenticate"] = 'Basic realm="specjax"'
            return await JSONResponse(body, error.status_code, headers)(scope, receive, send)
        try:
            await self.app(scope, self.limited(receive), send)
        except asyncio.CancelledError:  # it outlasted the time to finish, and the server ends
            logger.info("a request to %s is given up: the server stops", scope["path"])

    def check(self, path: str, headers: Headers) -> None:
        """Raise APIError if the path and headers of a request are not accepted."""
        if self.hosts is not None and not is_local(headers.get("host"), self.hosts):
            raise APIError(403, "this name is not this server's: see --allowed-hosts.")
        key = headers.get("authorization") or f"Bearer {headers.get('x-api-key', '')}"
        if path in WATCHED:
            key = bearer(key)
        if self.digests and path not in self.open_paths and not self.is_known(key):
            raise APIError(401, "a valid API key is needed: Authorization: Bearer KEY.")
        length = headers.get("content-length")
        if length is not None and "transfer-encoding" in headers:
            raise APIError(400, "a body has Content-Length or Transfer-Encoding, not both.")
        if length is not None and length.isdecimal() and int(length[:20]) > self.most_bytes:
            raise self.too_large()

    def is_known(self, authorization: str) -> bool:
        """Return whether a header has one of the keys, comparing in constant time."""
        scheme, _, key = authorization.partition(" ")
        given = digest(key.encode("latin-1"))  # headers are bytes
        found = [hmac.compare_digest(given, known) for known in self.digests]
        return scheme.lower() == "bearer" and any(found)

    def limited(self, receive: Receive) -> Receive:
        """Return ``receive`` with a limit on the size and the time of the body."""
        size, complete, until = 0, False, time.monotonic() + MOST_SECONDS

        async def read() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), until - time.monotonic())
            except TimeoutError:
                raise APIError(408, f"the body did not arrive in {MOST_SECONDS:g} s.") from None
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if size > self.most_bytes:
                raise self.too_large()
            return message

        return read

    def too_large(self) -> APIError:
        """Return the error for a body that is too large."""
        return APIError(413, f"the body is larger than {self.most_bytes} bytes.")


def check_keys(keys: Sequence[str]) -> None:
    """Raise ValueError for an empty key, which every client would have."""
    if not all(key.strip() for key in keys):
        raise ValueError("an API key is empty: is a shell variable unset?")


def bearer(authorization: str) -> str:
    """Return a browser's header, whose password is a key, as a client's; others as they are."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        pair = base64.b64decode(given, validate=True)
    except binascii.Error:
        return authorization
    return f"Bearer {pair.partition(b':')[2].decode('latin-1')}"


def digest(key: bytes) -> bytes:
    """Return a key's SHA-256 digest."""
    return hashlib.sha256(key).digest()


def is_local(host: str | None, names: Sequence[str]) -> bool:
    """Return whether a Host header is an IP address, localhost or one of the names."""
    if host is None:
        return True
    name, _, port = host.strip().lower().rpartition(":")
    if not port.isdecimal() or (":" in name and not name.startswith("[")):
        name = host.strip().lower()
    name = name.removeprefix("[").removesuffix("]").removesuffix(".")
    if name == "localhost" or name.endswith(".localhost") or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
