"""What can be compared: specjax in this process, and any OpenAI-compatible server.

An arm is written LABEL=URL, or LABEL=KIND:CONFIG where KIND is ``specjax`` (in this process),
``serve`` (``specjax serve``, started and stopped) or ``vllm`` (through the oracle's environment,
likewise) and CONFIG its speculative_config as JSON, or nothing for plain decoding.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import httpx

from specjax import __version__
from specjax.ab import client
from specjax.ab.counters import read_counters
from specjax.ab.records import Record, failed
from specjax.audit.client import Server
from specjax.engine.chat import Message
from specjax.engine.llm import LLM
from specjax.engine.params import SamplingParams
from specjax.engine.service import Failed, Full, Service
from specjax.metrics import SpecDecodeCounters
from specjax.oracle.ask import open_server

KINDS = ("specjax", "serve", "vllm")
START_TIMEOUT = 300.0  # s


class Spec(NamedTuple):
    """An arm as it was asked for."""

    label: str
    kind: str  # one of KINDS, or "url"
    url: str | None
    config: Mapping[str, Any] | None  # its speculative_config, for the record if a URL


class Ask(NamedTuple):
    """How every request is made."""

    max_tokens: int
    temperature: float
    chat: bool
    ignore_eos: bool
    seed: int
    timeout: float  # s
    extra: Mapping[str, Any]


class Arm(Protocol):
    """Something that completes prompts."""

    spec: Spec

    def about(self) -> dict[str, Any]:
        """Say what it is, for the manifest."""
        ...

    async def complete(self, messages: Sequence[Message], name: str, began: float, salt: str):
        """Complete a conversation; return its ``Record`` and its text."""
        ...

    async def counters(self) -> SpecDecodeCounters | None:
        """Read its speculative counters."""
        ...

    def score(self, prompt: str, tokens: Sequence[int]) -> list[float]:
        """Return the logprob of tokens after a prompt, all read as one."""
        ...


def parse_arm(text: str) -> Spec:
    """Read one --arm. Raises ValueError, with an example, for what is none."""
    label, found, rest = text.partition("=")
    kind, _, config = rest.partition(":")
    if not (found and label and rest):
        raise ValueError(f"--arm is LABEL=URL or LABEL=KIND:CONFIG, got {text!r}; {EXAMPLE}")
    if kind in ("http", "https"):
        return Spec(label, "url", rest, None)
    if kind not in KINDS:
        raise ValueError(f"--arm {text!r}: unknown kind {kind!r}, not a URL either; {EXAMPLE}")
    return Spec(label, kind, None, parse_object(config, f"--arm {label}") if config else None)


EXAMPLE = (
    'for example --arm plain=specjax --arm \'ngram=vllm:{"method": "ngram", '
    '"num_speculative_tokens": 3}\' --arm other=http://localhost:8000'
)


def parse_object(text: str, what: str) -> dict[str, Any]:
    """Read a JSON object. Raises ValueError saying what it should have been."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{what} is not valid JSON: {error}; got {text}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a JSON object, got {text}")
    return value


@dataclass
class ServerArm:
    """A server behind a URL."""

    spec: Spec
    ask: Ask
    server: Server
    api_key: str | None
    connections: int
    versions: Mapping[str, Any] = field(default_factory=dict)
    tells_ids: bool = True
    _client: httpx.AsyncClient | None = None

    def about(self) -> dict[str, Any]:
        """Say what it is, for the manifest."""
        told = {"url": self.server.url, "model": self.server.model}
        return {**told, "version": self.server.version(), **self.versions}

    async def complete(
        self, messages: Sequence[Message], name: str, began: float, salt: str
    ) -> tuple[Record, str]:
        """Stream one completion over HTTP."""
        ask, body = self.ask, {"model": self.server.model}
        if ask.chat:
            path = "/v1/chat/completions"
            body |= {"messages": list(messages), "max_completion_tokens": ask.max_tokens}
        else:
            path = "/v1/completions"
            body |= {"prompt": messages[-1]["content"], "max_tokens": ask.max_tokens}
        body |= {"temperature": ask.temperature, "seed": ask.seed, **ask.extra}
        if ask.ignore_eos:
            body["ignore_eos"] = True
        if self.tells_ids:
            body |= {"return_token_ids": True, "cache_salt": salt}
        return await client.complete(self._open(), path, body, name, began)

    async def counters(self) -> SpecDecodeCounters | None:
        """Read /metrics."""
        try:
            answer = await self._open().get("/metrics")
        except httpx.HTTPError:
            return None
        return read_counters(answer.text) if answer.is_success else None

    def score(self, prompt: str, tokens: Sequence[int]) -> list[float]:
        """Return the logprob of tokens after a prompt (echo with logprobs)."""
        return [one.logprob for one in self.server.score(self.server.encode(prompt), tokens)]

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = client.open_client(
                self.server.url, self.api_key, self.ask.timeout, self.connections
            )
        return self._client


@dataclass
class LocalArm:
    """specjax in this process."""

    spec: Spec
    ask: Ask
    llm: LLM
    service: Service

    def about(self) -> dict[str, Any]:
        """Say what it is, for the manifest."""
        return {"version": __version__, "dtype": self.llm.model_config.dtype}

    async def complete(
        self, messages: Sequence[Message], name: str, began: float, salt: str
    ) -> tuple[Record, str]:
        """Submit one request; the times are when the engine's tokens reached this thread."""
        ask, start = self.ask, time.perf_counter()
        tokenizer = self.llm.get_tokenizer()
        prompt: Any = messages[-1]["content"]
        if ask.chat:
            prompt = {"prompt_token_ids": tokenizer.apply_chat_template(list(messages))}
        params = SamplingParams(
            temperature=ask.temperature,
            max_tokens=ask.max_tokens,
            ignore_eos=ask.ignore_eos,
            seed=ask.seed,
            **ask.extra,
        )
        text, times, counts, reason = "", [], [], None

        def fail(error: str) -> tuple[Record, str]:
            return failed(name, start - began, time.perf_counter() - start, error), ""

        try:
            (ticket,) = self.service.submit(prompt, params)
            async with asyncio.timeout(ask.timeout):
                async for delta in ticket:
                    text, reason = text + delta.text, delta.finish_reason
                    if delta.token_ids:
                        times.append(time.perf_counter() - start)
                        counts.append(len(delta.token_ids))
        except TimeoutError:
            ticket.abort()
            return fail("timeout")
        except (Full, Failed, ValueError) as error:
            return fail(f"{type(error).__name__}: {error}")
        done = ticket.completion()
        metrics = done.spec_decode_metrics
        stream = client.Stream(
            text=text,
            times=times,
            counts=counts,
            tokens=list(done.token_ids),
            input_tokens=len(ticket.prompt_token_ids),
            output_tokens=len(done.token_ids),
            finish_reason=reason,
            metrics=None if metrics is None else metrics.to_dict(),
        )
        end = time.perf_counter() - start
        return client.to_record(stream, name, start - began, end), text

    async def counters(self) -> SpecDecodeCounters | None:
        """Read the service's counters; None for plain decoding."""
        return self.service.stats().counters if self.spec.config else None

    def score(self, prompt: str, tokens: Sequence[int]) -> list[float]:
        """Return the logprob of tokens after a prompt."""
        ids = [*self.llm.get_tokenizer().encode(prompt), *tokens]
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)

        async def read():
            (ticket,) = self.service.submit({"prompt_token_ids": ids}, params)
            async for _ in ticket:
                pass
            return ticket.prompt_logprobs()

        said = asyncio.run(read()) or []
        places = range(len(ids) - len(tokens), len(ids))
        return [(said[i] or {})[ids[i]].logprob for i in places]


@contextmanager
def open_arms(
    specs: Sequence[Spec],
    ask: Ask,
    *,
    model: str,
    served_model: str | None,
    api_key: str | None,
    concurrency: int,
    max_model_len: int | None = None,
) -> Iterator[list[Arm]]:
    """Load and start every arm; what was started is stopped at the end.

    Raises ValueError or ConnectionError, naming the arm, before anything is measured.
    """
    with ExitStack() as opened:
        arms = []
        for spec in specs:
            try:
                if spec.kind == "specjax":
                    arms.append(opened.enter_context(local(spec, ask, model, concurrency)))
                    continue
                versions: Mapping[str, Any] = {}
                url = spec.url or ""
                if spec.kind == "serve":
                    url = opened.enter_context(serve(spec, model, concurrency, max_model_len))
                elif spec.kind == "vllm":
                    arguments = vllm_arguments(spec, concurrency, max_model_len)
                    told, url = opened.enter_context(
                        open_server(model, arguments=arguments, timeout=START_TIMEOUT, threads=2)
                    )
                    versions = told["versions"]
                name = served_model if spec.kind == "url" else None
                server = Server(url, name, api_key=api_key, timeout=ask.timeout)
                arm = ServerArm(spec, ask, server, api_key, concurrency, versions)
                arms.append(arm)
            except (ValueError, ConnectionError) as error:
                raise type(error)(f"arm {spec.label}: {error}") from None
        yield arms


@contextmanager
def local(spec: Spec, ask: Ask, model: str, concurrency: int) -> Iterator[LocalArm]:
    """Load specjax, its loop on a thread of its own."""
    llm = LLM(model, speculative_config=spec.config, max_num_seqs=concurrency)
    service = Service(llm, max_waiting=1024)
    try:
        yield LocalArm(spec, ask, llm, service)
    finally:
        service.close(drain=False)


def vllm_arguments(spec: Spec, concurrency: int, max_model_len: int | None) -> list[str]:
    """Return ``vllm serve``'s arguments: prefixes uncached, or a prompt's second turn is free."""
    arguments = ["--dtype", "float32", "--max-num-seqs", str(concurrency)]
    arguments += ["--no-enable-prefix-caching"]
    if max_model_len is not None:
        arguments += ["--max-model-len", str(max_model_len)]
    if spec.config is not None:
        arguments += ["--speculative-config", json.dumps(spec.config)]
    return arguments


@contextmanager
def serve(spec: Spec, model: str, concurrency: int, max_model_len: int | None) -> Iterator[str]:
    """Run ``specjax serve`` on a free port until the block ends; yield its URL."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "specjax", "serve", model, "--port", str(port)]
    command += ["--max-num-seqs", str(concurrency)]
    if max_model_len is not None:
        command += ["--max-model-len", str(max_model_len)]
    if spec.config is not None:
        command += ["--speculative-config", json.dumps(spec.config)]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with open(log, "wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=dict(os.environ))
        try:
            wait_until_up(url, process, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_up(url: str, process: subprocess.Popen, log: Path) -> None:
    """Return when a server answers. Raises ConnectionError with its last words if it does not."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    said = log.read_text(errors="replace").strip().splitlines()[-5:]
    raise ConnectionError("specjax serve did not start: " + " / ".join(said))
