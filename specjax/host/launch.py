"""Run ``specjax serve`` in a process of its own, for the time of a ``with`` block."""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

START_TIMEOUT = 600.0  # seconds a server may take to load and compile
STOP_TIMEOUT = 10.0  # seconds it may take to drain


@contextmanager
def open_specjax(
    model: str,
    arguments: Sequence[str],
    *,
    compile_all: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Start a server on a free port of this machine; yield its URL when it is healthy.

    Args:
        arguments: of its command line.
        compile_all: whether it compiles all programs before that.
        environment: further variables.

    Raises:
        ConnectionError: it ends or takes too long to start; the message has the end of its log.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "specjax", "serve", model, "--port", str(port)]
    command += [*["--compile-all"] * compile_all, *arguments]
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, **(environment or {})})
        try:
            url, until = f"http://127.0.0.1:{port}", time.monotonic() + START_TIMEOUT
            while not is_healthy(url):
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    end = log.read()[-2000:]
                    raise ConnectionError(f"{' '.join(command)} did not start: {end}")
                time.sleep(0.05)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def is_healthy(url: str) -> bool:
    """Return whether a server's /health responds with 200."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/health", timeout=10) as response:
            return response.status == 200
    except OSError:
        return False
