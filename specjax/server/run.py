"""``run_server``: bind the address, load and compile the model, serve until a signal."""

import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import MAX_LOGPROBS
from specjax.engine.progress import bar
from specjax.engine.service import Service
from specjax.server.app import create_app
from specjax.server.deployment import Deployment
from specjax.server.guard import MOST_BYTES, check_keys
from specjax.server.learning import train_while_serving, trainer_of
from specjax.server.tool_parsers import FORMATS
from specjax.server.tracing import Tracer, check_endpoint

logger = logging.getLogger(__name__)
# Seconds after which a thread must let another run. By Python's 5 ms, handing over from the thread
# that compiles, to the engine, to the event loop took the first answer 0.9 s instead of 0.2.
SWITCH_INTERVAL = 0.0005
MOST_CONNECTIONS = 4096  # further ones get 503
MOST_IDLE = 60.0  # seconds for the head of a request to arrive
KILLED = 128  # plus the signal's number: the exit code in shells


@dataclass(frozen=True)
class TLS:
    """uvicorn's options of HTTPS; without a certificate the server speaks HTTP.

    Args:
        certfile: the server's certificate chain, in PEM.
        keyfile: its private key; None: it is in ``certfile``.
        ca_certs: the authorities whose clients are accepted.
        cert_reqs: what clients must show, of ``ssl.VerifyMode``: 0 nothing, 1 a certificate if
            they have one, 2 a certificate.
    """

    certfile: Path | None = None
    keyfile: Path | None = None
    ca_certs: Path | None = None
    cert_reqs: int = ssl.CERT_NONE

    def check(self) -> None:
        """Raise ValueError for files that are missing, wrong, or do not fit each other."""
        others = {"keyfile": self.keyfile, "ca_certs": self.ca_certs, "cert_reqs": self.cert_reqs}
        for name, value in others.items():
            if value and self.certfile is None:
                raise ValueError(f"--ssl-{name.replace('_', '-')} needs --ssl-certfile.")
        if self.cert_reqs and self.ca_certs is None:
            raise ValueError("--ssl-cert-reqs needs --ssl-ca-certs: whose certificates?")
        for path in (self.certfile, self.keyfile, self.ca_certs):
            if path is not None and not path.is_file():
                raise ValueError(f"{path} is no file: --ssl-* name files in PEM.")
        if self.certfile is None:
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certfile, self.keyfile, password=no_password)
            if self.ca_certs is not None:
                context.load_verify_locations(self.ca_certs)
        except (ssl.SSLError, OSError) as error:
            raise ValueError(
                f"--ssl-certfile {self.certfile} with its key: {error}. Both must be in PEM and "
                "belong to each other, the key without a password."
            ) from None

    def options(self) -> dict[str, Any]:
        """Return the options of ``uvicorn.Config``."""
        if self.certfile is None:
            return {}
        return {
            "ssl_certfile": self.certfile,
            "ssl_keyfile": self.keyfile,
            "ssl_ca_certs": None if self.ca_certs is None else str(self.ca_certs),
            "ssl_cert_reqs": self.cert_reqs,
        }


def no_password() -> str:
    """Refuse to ask for a key's password on the terminal."""
    raise OSError("the key has a password")


class Server(uvicorn.Server):
    """uvicorn's server; the first signal finishes running requests, the second stops at once.

    It also stops when the engine's thread has ended by an exception: whoever runs the server then
    starts another, while a process that answers 503 forever would be left alone.
    """

    def __init__(self, config: uvicorn.Config, service: Service, abandon: Callable[[], None]):
        super().__init__(config)
        self.service = service
        self.abandon = abandon  # ends what runs beside it
        self.idle: dict[Any, float] = {}  # connections without a request, and since when

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop, ten times a second."""
        self.close_idle(time.monotonic())
        return await super().on_tick(counter) or self.service.dead

    def close_idle(self, now: float) -> None:
        """Close connections whose request's head has not arrived in time."""
        connections: list[Any] = list(self.server_state.connections)
        self.idle = {
            one: self.idle.get(one, now)
            for one in connections
            if one.cycle is None or one.cycle.response_complete
        }
        for one, since in self.idle.items():
            if now - since > MOST_IDLE:
                one.transport.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop listening and finish running requests; the second time end the process.

        It ends by ``os._exit``: finalizing the interpreter under JAX's threads can crash.
        """
        name = signal.Signals(sig).name
        if self.should_exit:
            logger.info("%s: stopping at once", name)
            self.abandon()
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
    allowed_hosts: Sequence[str] = (),
    protect_metrics: bool = False,
    chat_template: Path | None = None,
    tool_call_parser: str | None = None,
    enable_auto_tool_choice: bool = False,
    by_priority: bool = False,
    max_logprobs: int = MAX_LOGPROBS,
    enable_force_include_usage: bool = False,
    return_tokens_as_token_ids: bool = False,
    request_timeout: float | None = None,
    otlp_traces_endpoint: str | None = None,
    max_num_batched_tokens: int | None = None,
    prefix_cache_bytes: int = 0,
    max_queued: int = 1024,
    most_bytes: int = MOST_BYTES,
    compile_all: bool = False,
    shutdown_timeout: int = 60,
    train_drafter: Path | None = None,
    train_drafter_every: int = 256,
    tls: TLS = TLS(),
    root_path: str = "",
    enable_request_id_headers: bool = False,
    enable_tokenizer_info_endpoint: bool = False,
) -> None:
    """Serve a model until a signal comes.

    The address is bound before anything is loaded, and accepts requests once the programs that
    any request needs are compiled; the others, of smaller shapes, are compiled while it serves.

    Args:
        compile_all: wait for all programs.
        prefix_cache_bytes: for the beginnings of prompts that are kept.
        train_drafter: a folder: train the drafting head on the answers, beside serving, and keep
            both there.
        train_drafter_every: new answers after which it is trained again.
        tls: the files of HTTPS.
        allowed_hosts: names that a Host header may have, besides IP addresses and localhost. With
            an address of this machine only (127.0.0.1) no others are accepted; elsewhere all are,
            unless some are named here.
        tool_call_parser: ``Deployment``'s, as are ``enable_auto_tool_choice``, ``by_priority``,
            ``max_logprobs`` and the three after it.
        otlp_traces_endpoint: a collector of OpenTelemetry for the traces of requests.

    The other arguments are ``create_app``'s.

    Raises:
        ValueError: an option is wrong, or the address is taken.
        OSError: a file cannot be read.
    """
    check_keys(api_keys)
    if protect_metrics and not api_keys:
        raise ValueError("--protect-metrics needs --api-key.")
    check_tool_options(tool_call_parser, enable_auto_tool_choice)
    tls.check()
    check_endpoint(otlp_traces_endpoint)
    trainer = None
    if train_drafter is not None:
        trainer = trainer_of(model, options, train_drafter, train_drafter_every)
    log_to_stderr()
    sys.setswitchinterval(SWITCH_INTERVAL)
    source = None if chat_template is None else chat_template.read_text(encoding="utf-8")
    scheme = "http" if tls.certfile is None else "https"
    with (
        listen(host, port, uds, scheme) as (listener, address),
        contextlib.ExitStack() as beside,
    ):
        # beams and a smaller limit of the server's need the usual programs
        most = -1 if max_logprobs == -1 else max(max_logprobs, MAX_LOGPROBS)
        llm = LLM(model, **options, max_logprobs=most)
        service = Service(
            llm.core,
            max_waiting=max_queued,
            max_num_batched_tokens=max_num_batched_tokens,
            prefix_cache_bytes=prefix_cache_bytes,
        )
        if trainer is not None:
            train_while_serving(service, trainer)
            beside.callback(trainer.close)
        if prefix_cache_bytes and service.prefixes is None:
            logger.info("no prefix caching on this device, or with this drafter")
        served = Deployment(
            service=service,
            names=tuple(names) or (model,),
            max_queued=max_queued,
            chat_template=source,
            tool_call_parser=tool_call_parser,
            enable_auto_tool_choice=enable_auto_tool_choice,
            by_priority=by_priority,
            max_logprobs=max_logprobs,
            force_include_usage=enable_force_include_usage,
            tokens_as_token_ids=return_tokens_as_token_ids,
            request_timeout=request_timeout,
        )
        config = uvicorn.Config(
            create_app(
                served,
                api_keys=api_keys,
                most_bytes=most_bytes,
                hosts=accepted_hosts(host, uds, allowed_hosts),
                protect_metrics=protect_metrics,
                root_path=root_path,
                enable_request_id_headers=enable_request_id_headers,
                enable_tokenizer_info_endpoint=enable_tokenizer_info_endpoint,
                tracer=None if otlp_traces_endpoint is None else Tracer(otlp_traces_endpoint),
            ),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=shutdown_timeout,
            limit_concurrency=MOST_CONNECTIONS,
            ws="none",
            server_header=False,
            **tls.options(),
        )
        config.load()  # now: a thread compiles from warm_up on, and would slow it
        with bar("compiling") as shown:
            start = time.monotonic()
            service.warm_up(shown, wait=compile_all)
        logger.info("compiled in %.1f s", time.monotonic() - start)
        logger.info("serving %s at %s", ", ".join(served.names), address)
        Server(config, service, beside.close).run([listener])
    if service.dead:
        raise RuntimeError("the engine has stopped by an exception; the log above has it.")


def check_tool_options(parser: str | None, auto: bool) -> None:
    """Raise ValueError for an unknown format of tool calls, or for none where one is needed."""
    if auto and parser is None:
        raise ValueError("--enable-auto-tool-choice requires --tool-call-parser.")
    if parser is not None and parser not in FORMATS:
        raise ValueError(f"--tool-call-parser {parser!r} is not one of {', '.join(FORMATS)}.")


def accepted_hosts(host: str, uds: Path | None, allowed: Sequence[str]) -> tuple[str, ...] | None:
    """Return the names that a Host header may have, as ``Guard`` takes them; None: all."""
    if allowed:
        return tuple(name.lower() for name in (*allowed, host))
    return (host.lower(),) if uds is None and is_loopback(host) else None


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    return host == "localhost" or host == "::1" or host.startswith("127.")


@contextlib.contextmanager
def listen(
    host: str, port: int, uds: Path | None, scheme: str
) -> Iterator[tuple[socket.socket, str]]:
    """Bind the address; yield the socket and its URL. A unix socket is for this user only."""
    if uds is not None:
        with socket.socket(socket.AF_UNIX) as listener:
            bind_privately(listener, uds)
            yield listener, str(uds)
        uds.unlink(missing_ok=True)
        return
    if not host:
        raise ValueError("--host is empty: name an address, or 0.0.0.0 for all of them.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ValueError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        name, port = listener.getsockname()[:2]
        yield listener, f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}"


def bind_privately(listener: socket.socket, uds: Path) -> None:
    """Bind to a socket file for this user only; the file of a server that has ended is removed."""
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


def log_to_stderr() -> None:
    """Write the logs of specjax and uvicorn to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("%(levelname)s %(asctime)s %(message)s", "%m-%d %H:%M:%S")
    )
    for name in ("specjax", "uvicorn"):
        own = logging.getLogger(name)
        own.handlers, own.propagate = [handler], False
        own.setLevel(logging.INFO)
