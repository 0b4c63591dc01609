"""An arm behind a URL: a running server, or one started for the comparison."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp

from specjax.ab.arms import Ask, Messages, Spec
from specjax.ab.client import complete
from specjax.ab.counters import read_counters
from specjax.ab.records import Record
from specjax.audit.client import Server
from specjax.bundled import resolve
from specjax.core.metrics import SpecDecodeCounters
from specjax.measure.streaming import open_session


@dataclass
class ServerArm:
    """A server behind a URL."""

    spec: Spec
    ask: Ask
    server: Server
    api_key: str | None
    connections: int
    versions: Mapping[str, Any] = field(default_factory=dict)
    returns_ids: bool = True
    _session: aiohttp.ClientSession | None = None

    def about(self) -> dict[str, Any]:
        """Return URL, model and versions, for the manifest."""
        server = {"url": self.server.url, "model": self.server.model}
        return {**server, "version": self.server.version(), **self.versions}

    async def complete(
        self, messages: Messages, name: str, began: float, salt: str
    ) -> tuple[Record, str]:
        """Return the record and text of one completion streamed over HTTP."""
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
        if self.returns_ids:
            body |= {"return_token_ids": True, "cache_salt": salt}
        return await complete(self._open(), path, body, name, began)

    async def counters(self) -> SpecDecodeCounters | None:
        """Return the speculative counters of /metrics."""
        try:
            async with self._open().get("/metrics", trace_request_ctx=SimpleNamespace()) as answer:
                return read_counters(await answer.text()) if answer.ok else None
        except aiohttp.ClientError:
            return None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def score(self, prompt: str, tokens: Sequence[int]) -> list[float]:
        """Return the logprobs of tokens after a prompt (``echo`` with logprobs)."""
        return [one.logprob for one in self.server.score(self.server.encode(prompt), tokens)]

    def greedy(self, prompt: str, tokens: int) -> tuple[Sequence[int], Sequence[float] | None]:
        """Return the greedy continuation, and its logprobs if the server returns them."""
        return self.server.greedy(prompt, tokens)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(
                self.server.url,
                connections=self.connections,
                api_key=self.api_key,
                timeout=self.ask.timeout,
            )
        return self._session


def serve_arguments(spec: Spec, concurrency: int, max_model_len: int | None) -> list[str]:
    """Return the arguments of ``specjax serve`` and ``vllm serve``.

    Without prefix caching: prompts are sent repeatedly.
    """
    arguments = ["--no-enable-prefix-caching", "--max-num-seqs", str(concurrency)]
    if max_model_len is not None:
        arguments += ["--max-model-len", str(max_model_len)]
    if spec.config is not None:
        config = dict(spec.config)
        if "model" in config:  # vLLM does not know our names of shipped checkpoints
            config["model"] = str(resolve(config["model"]))
        arguments += ["--speculative-config", json.dumps(config)]
    return [*arguments, *spec.arguments]
