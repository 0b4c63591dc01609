"""Applications behind a real socket, and a client that speaks no more HTTP than it must."""

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import uvicorn

DATA = re.compile(rb"^data: (.*)$", re.MULTILINE)


@contextlib.contextmanager
def running(application: Any, **options: Any) -> Iterator[str]:
    """Serve an ASGI application on a free port of this machine; yield its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        options = {"log_level": "error", "ws": "none", **options}
        server = uvicorn.Server(uvicorn.Config(application, **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class Reply(NamedTuple):
    """An answer as it came over the wire."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def header(self, name: str) -> str | None:
        """Return the value of a header; None if it is absent."""
        return dict(self.headers).get(name.encode(), b"").decode() or None

    def json(self) -> Any:
        """Return the body of a whole answer."""
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Return the events of a stream, its end mark left out (it is checked)."""
        *events, done = DATA.findall(self.body)
        assert done.strip() == b"[DONE]", self.body[-300:]
        return [json.loads(event) for event in events]


def request(path: str, body: Any, headers: str = "") -> bytes:
    """Write a request of HTTP/1.1 whose connection is used once."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content


async def ask(url: str, path: str, body: Any, *, leave_after: int | None = None) -> Reply | None:
    """Send one request; with ``leave_after`` go away after so many bytes of the answer: None."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request(path, body))
        await writer.drain()
        if leave_after is not None:
            if leave_after:
                await reader.read(leave_after)
            return None
        answer = await reader.read()
    finally:
        writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    return Reply(int(head.split()[1]), rest)
