"""An arm behind a URL: running already, or ``specjax serve`` or vLLM started for the comparison."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp

from specjax.ab import client
from specjax.ab.arms import Ask, Messages, Spec
from specjax.ab.counters import read_counters
from specjax.ab.records import Record
from specjax.audit.client import Server
from specjax.bundled import resolve
from specjax.metrics import SpecDecodeCounters


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
    _client: aiohttp.ClientSession | None = None

    def about(self) -> dict[str, Any]:
        """Say what it is, for the manifest."""
        told = {"url": self.server.url, "model": self.server.model}
        return {**told, "version": self.server.version(), **self.versions}

    async def complete(
        self, messages: Messages, name: str, began: float, salt: str
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
            async with self._open().get("/metrics", trace_request_ctx=SimpleNamespace()) as answer:
                return read_counters(await answer.text()) if answer.ok else None
        except aiohttp.ClientError:
            return None

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def score(self, prompt: str, tokens: Sequence[int]) -> list[float]:
        """Return the logprob of tokens after a prompt (echo with logprobs)."""
        return [one.logprob for one in self.server.score(self.server.encode(prompt), tokens)]

    def greedy(self, prompt: str, tokens: int) -> tuple[Sequence[int], Sequence[float] | None]:
        """Return the most likely continuation, and its logprobs if the server tells them."""
        return self.server.greedy(prompt, tokens)

    def _open(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = client.open_client(
                self.server.url, self.api_key, self.ask.timeout, self.connections
            )
        return self._client


def vllm_arguments(spec: Spec, concurrency: int, max_model_len: int | None) -> list[str]:
    """Return ``vllm serve``'s arguments: prefixes uncached, or a prompt's second turn is free."""
    return ["--no-enable-prefix-caching", *serve_arguments(spec, concurrency, max_model_len)]


def serve_arguments(spec: Spec, concurrency: int, max_model_len: int | None) -> list[str]:
    """Return the arguments that ``specjax serve`` and ``vllm serve`` share."""
    arguments = ["--max-num-seqs", str(concurrency)]
    if max_model_len is not None:
        arguments += ["--max-model-len", str(max_model_len)]
    if spec.config is not None:
        config = dict(spec.config)
        if "model" in config:  # vLLM does not know our names of shipped checkpoints
            config["model"] = str(resolve(config["model"]))
        arguments += ["--speculative-config", json.dumps(config)]
    return [*arguments, *spec.arguments]
