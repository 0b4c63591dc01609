"""The server in a process of its own."""

import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

PATIENCE = 300.0  # seconds, for a machine that does other things


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def process(
    *command: str,
    port: int | None = None,
    uds: str | None = None,
    verify: ssl.SSLContext | None = None,
    disk_full: bool = False,
    **environment: str,
) -> Iterator[tuple[subprocess.Popen, httpx.Client]]:
    """Run a server until it answers; yield it and a client of it."""
    port = free_port() if port is None else port
    address = ("--uds", uds) if uds else ("--host", "127.0.0.1", "--port", str(port))
    running = subprocess.Popen(
        [sys.executable, "-m", *command, *address],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    if disk_full:
        fill_disk(running)
    transport = httpx.HTTPTransport(uds=uds, verify=verify or True)
    scheme = "https" if verify else "http"
    client = httpx.Client(
        transport=transport, base_url=f"{scheme}://127.0.0.1:{port}", timeout=PATIENCE
    )
    try:
        until = time.monotonic() + PATIENCE
        while True:
            assert running.poll() is None, running.stderr.read()
            assert time.monotonic() < until
            if uds and not listens(uds):  # httpx forgets to close what cannot connect
                time.sleep(0.1)
                continue
            try:
                if client.get("/health").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield running, client
    finally:
        client.close()
        running.kill()
        running.wait()
        running.stderr.close()


def fill_disk(running: subprocess.Popen) -> None:
    """Let every write of a process to a file fail from now on, as on a full disk (Linux)."""
    limit = (0, resource.RLIM_INFINITY)
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, limit)


def listens(path: str) -> bool:
    """Tell whether anybody accepts connections at a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def streamed(client: httpx.Client, after_first: Callable[[], object], **body) -> str:
    """Stream a completion, do something after its first piece, and return the whole text."""
    text = []
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                text.append(json.loads(line[6:])["choices"][0]["text"])
                if len(text) == 1:
                    after_first()
    return "".join(text)
