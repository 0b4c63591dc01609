"""A client of an OpenAI-compatible server: samples, greedy texts and prompt logprobs.

Only /v1/models and /v1/completions are needed; /version and /metrics are read if they exist, and
/v1/chat/completions is asked for functions.
The server must return token ids (``return_token_ids``, as in vLLM).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx

DRAFTS = re.compile(r"^vllm:spec_decode_num_drafts_total\{?.*\s(\S+)$", re.MULTILINE)


class Score(NamedTuple):
    """A server's logprob of one token, before temperature and filters."""

    logprob: float
    best: float  # logprob of the likeliest token at the same position


class Server:
    """One server and one of its models.

    ``extra`` is added to the body of every request. Raises ConnectionError when the server is not
    reachable or takes more than ``timeout`` seconds, ValueError when it returns an error.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        extra: Mapping[str, Any] | None = None,
        timeout: float = 300.0,
    ):
        self.url = url.rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"a base URL starts with http:// or https://, got {url!r}")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._client = httpx.Client(
            headers=headers,
            timeout=timeout,
            limits=httpx.Limits(max_keepalive_connections=0),  # idle ones may be closed under us
            trust_env=httpx.URL(self.url).host not in ("localhost", "127.0.0.1", "::1"),  # proxies
        )
        self.extra = dict(extra or {})
        known = [one["id"] for one in self._ask("GET", "/v1/models", "data")]
        if model is None and len(known) != 1:
            raise ValueError(f"{self.url} serves {known}: say which with --model")
        if model is not None and model not in known:
            raise ValueError(f"{self.url} does not serve {model!r}, only {known}")
        self.model = model or known[0]

    def version(self) -> str | None:
        """Return the answer of /version; None if there is none."""
        answer = self._client.get(self.url + "/version")
        return answer.text if answer.is_success else None

    def num_drafts(self) -> int | None:
        """Return the drafts that /metrics counts so far; None if it has no such counter."""
        answer = self._client.get(self.url + "/metrics")
        counts = DRAFTS.findall(answer.text) if answer.is_success else []
        return sum(int(float(number)) for number in counts) if counts else None

    def draw(
        self,
        prompt: str,
        num: int,
        *,
        tokens: int,
        temperature: float,
        batch: int,
        concurrency: int,
        progress: Callable[[int], None],
        seed: int | None = None,
    ) -> Counter:
        """Return counts of ``num`` sampled texts of ``tokens`` tokens, ``batch`` per request.

        ``progress`` is called with the number of texts of every request. Text i has the seed
        ``seed`` + i, since servers count a request's samples on from its seed.
        """
        starts = range(0, num, batch)
        asked = {"prompt": prompt, "max_tokens": tokens, "temperature": temperature}

        def some(start: int) -> list[tuple[int, ...]]:
            size = min(batch, num - start)
            own = {} if seed is None else {"seed": seed + start}
            choices = self.complete({**asked, "n": size, **own})
            if len(choices) != size:
                raise ValueError(
                    f"{self.url} made {len(choices)} of n = {size} choices: pass --batch 1"
                )
            return [self._ids(choice)[:tokens] for choice in choices]

        counts = Counter()
        with ThreadPoolExecutor(concurrency) as pool:
            for texts in pool.map(some, starts):
                counts.update(texts)
                progress(len(texts))
        return counts

    def greedy(self, prompt: str, tokens: int) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
        """Return the greedy continuation's token ids, and their logprobs if the server has them."""
        asked = {"prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "logprobs": 1}
        (choice,) = self.complete(asked)
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        return self._ids(choice)[:tokens], None if logprobs is None else tuple(logprobs)[:tokens]

    def encode(self, prompt: str) -> tuple[int, ...]:
        """Return the prompt's token ids."""
        (choice,) = self.complete({"prompt": prompt, "max_tokens": 1, "temperature": 0.0})
        self._ids(choice)
        if choice.get("prompt_token_ids") is None:
            raise ValueError(f"{self.url} does not tell the prompt's token ids")
        return tuple(choice["prompt_token_ids"])

    def score(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Score]:
        """Return the scores of given tokens after a prompt (``echo`` with logprobs)."""
        asked = {"prompt": [*prompt, *tokens], "max_tokens": 1, "temperature": 0.0}
        (choice,) = self.complete({**asked, "echo": True, "logprobs": 1})
        logprobs, places = choice.get("logprobs") or {}, slice(len(prompt), len(asked["prompt"]))
        own = (logprobs.get("token_logprobs") or [])[places]
        tops = (logprobs.get("top_logprobs") or [])[places]
        if len(own) < len(tokens) or len(tops) < len(tokens):
            raise ValueError(f"{self.url} does not score prompts (echo with logprobs)")
        return [Score(one, max(top.values())) for one, top in zip(own, tops, strict=True)]

    def _ids(self, choice: Mapping[str, Any]) -> tuple[int, ...]:
        if choice.get("token_ids") is None:
            raise ValueError(
                f"{self.url} does not tell token ids: it must know return_token_ids, as vLLM does"
            )
        return tuple(choice["token_ids"])

    def complete(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the choices of a completion request, in their order."""
        body = {"model": self.model, "return_token_ids": True, **self.extra, **asked}
        choices = self._ask("POST", "/v1/completions", "choices", body)
        return sorted(choices, key=lambda choice: choice["index"])

    def chat(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the choices of a chat request."""
        body = {"model": self.model, **self.extra, **asked}
        return self._ask("POST", "/v1/chat/completions", "choices", body)

    def stream(
        self, asked: Mapping[str, Any], path: str = "/v1/completions"
    ) -> list[dict[str, Any]]:
        """Return the events of a streamed answer that have choices."""
        body = {"model": self.model, "return_token_ids": True, **self.extra, **asked}
        answer = self._send("POST", path, {**body, "stream": True})
        events = [line.removeprefix("data:").strip() for line in answer.text.splitlines() if line]
        parsed = [json.loads(event) for event in events if event.startswith("{")]
        return [event for event in parsed if event.get("choices")]

    def _send(self, method: str, path: str, body: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, self.url + path, json=body)
        except httpx.TimeoutException:
            raise ConnectionError(
                f"{self.url}{path} did not answer in time: pass a smaller --batch or a larger "
                "--timeout"
            ) from None
        except httpx.TransportError as error:
            raise ConnectionError(
                f"cannot reach {self.url} ({error}): is the server up, and is this its address?"
            ) from None
        if not answer.is_success:
            raise ValueError(f"{self.url}{path} answered {answer.status_code}: {answer.text:.300}")
        return answer

    def _ask(self, method: str, path: str, wanted: str, body: Any = None) -> Any:
        answer = self._send(method, path, body)
        try:
            return answer.json()[wanted]
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{self.url}{path} does not speak OpenAI's protocol: there is no {wanted!r} in "
                f"{answer.text!r:.200}"
            ) from None
