"""Connections are limited in number, and in how long they may take to say what they want."""

import contextlib
import socket
import threading
import time

import httpx
import pytest
import uvicorn

from specjax.engine.service import Service
from specjax.server import run
from tests.server.processes import free_port

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@contextlib.contextmanager
def served(application, service, **options):
    """Serve by the server that ``specjax serve`` runs; yield its address."""
    config = uvicorn.Config(application, log_level="error", ws="none", lifespan="off", **options)
    server = run.Server(config, service, lambda: None)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_a_head_that_does_not_arrive_is_given_up(application, deployment, monkeypatch, http):
    if http == "httptools":
        pytest.importorskip("httptools")
    monkeypatch.setattr(run, "MOST_IDLE", 0.5)
    with served(application, deployment.service, http=http) as address:
        with socket.create_connection(address, timeout=30) as slow:
            slow.sendall(HEAD)
            assert slow.recv(100) == b""
        with socket.create_connection(address, timeout=30) as again:  # after a whole request
            again.sendall(HEAD + b"\r\n")
            assert again.recv(1000).startswith(b"HTTP/1.1 200")
            again.sendall(HEAD)
            assert again.recv(100) == b""


def test_a_server_whose_engine_has_stopped_ends_with_an_error(pair, monkeypatch):
    monkeypatch.setattr(Service, "_prepare", lambda _: 1 / 0)
    monkeypatch.setattr(Service, "warm_up", lambda service, *_, **__: service._thread.start())
    monkeypatch.setattr("threading.excepthook", lambda args: None)
    monkeypatch.setattr(run, "log_to_stderr", lambda: None)
    with pytest.raises(RuntimeError, match="the engine has stopped by an exception"):
        run.run_server(pair.target, {"max_model_len": 64, "max_num_seqs": 1}, port=free_port())


def test_more_connections_than_the_limit_are_refused(application, deployment):
    with served(application, deployment.service, limit_concurrency=3) as (host, port):
        held = [socket.create_connection((host, port)) for _ in range(3)]
        time.sleep(0.2)
        assert httpx.get(f"http://{host}:{port}/health").status_code == 503
        for one in held:
            one.close()
        time.sleep(0.2)
        assert httpx.get(f"http://{host}:{port}/health").status_code == 200
