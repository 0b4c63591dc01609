"""``run_server``: bind, load, compile, serve until told to stop."""

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from specjax.engine.llm import LLM
from specjax.engine.progress import bar
from specjax.engine.service import Service
from specjax.server.app import create_app
from specjax.server.deployment import Deployment
from specjax.server.guard import MOST_BYTES

logger = logging.getLogger(__name__)
KILLED = 128  # plus the signal's number: how shells write it


class Server(uvicorn.Server):
    """uvicorn, which the first signal stops gently and the second at once."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop listening and finish what runs; the second time end the process as it is.

        JAX's threads may be at work: taking the interpreter down under them can crash.
        """
        name = signal.Signals(sig).name
        if self.should_exit:
            logger.info("%s: stopping at once", name)
            os._exit(KILLED + sig)
        logger.info("%s: finishing what runs; again to stop", name)
        self.should_exit = True


def run_server(
    model: str,
    options: Mapping[str, Any],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    uds: Path | None = None,
    names: Sequence[str] = (),
    api_keys: Sequence[str] = (),
    chat_template: Path | None = None,
    max_num_batched_tokens: int | None = None,
    max_queued: int = 1024,
    most_bytes: int = MOST_BYTES,
    shutdown_timeout: int = 60,
) -> None:
    """Serve a model until a signal comes.

    The address is taken before anything is loaded, and answers once all is compiled.
    Raises ValueError or OSError for what cannot be served.
    """
    speak_up()
    source = None if chat_template is None else chat_template.read_text(encoding="utf-8")
    with listen(host, port, uds) as (listener, address):
        llm = LLM(model, **options)
        service = Service(
            llm, max_waiting=max_queued, max_num_batched_tokens=max_num_batched_tokens
        )
        with bar("compiling") as shown:
            start = time.monotonic()
            service.warm_up(shown)
        logger.info("compiled everything in %.1f s", time.monotonic() - start)
        served = Deployment(
            llm=llm,
            service=service,
            names=tuple(names) or (model,),
            max_queued=max_queued,
            chat_template=source,
        )
        config = uvicorn.Config(
            create_app(served, api_keys=api_keys, most_bytes=most_bytes),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=shutdown_timeout,
            ws="none",
            server_header=False,
        )
        logger.info("serving %s at %s", ", ".join(served.names), address)
        Server(config).run([listener])


@contextlib.contextmanager
def listen(host: str, port: int, uds: Path | None) -> Iterator[tuple[socket.socket, str]]:
    """Take the address; yield it as a socket and in words. Nobody else may use a unix socket."""
    if uds is not None:
        with socket.socket(socket.AF_UNIX) as listener:
            bind_privately(listener, uds)
            yield listener, str(uds)
        uds.unlink(missing_ok=True)
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ValueError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        name, port = listener.getsockname()[:2]
        yield listener, f"http://{f'[{name}]' if ':' in name else name}:{port}"


def bind_privately(listener: socket.socket, uds: Path) -> None:
    """Bind to a file that only this user may use, in place of one that a dead server left."""
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(uds)) == 0:
            raise ValueError(f"another server listens on {uds}")
    if uds.is_socket():
        uds.unlink()
    before = os.umask(0o177)
    try:
        listener.bind(str(uds))
    except OSError as error:
        raise ValueError(f"cannot listen on {uds}: {error.strerror}") from None
    finally:
        os.umask(before)


def speak_up() -> None:
    """Let our log and uvicorn's reach stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("%(levelname)s %(asctime)s %(message)s", "%m-%d %H:%M:%S")
    )
    for name in ("specjax", "uvicorn"):
        own = logging.getLogger(name)
        own.handlers, own.propagate = [handler], False
        own.setLevel(logging.INFO)
