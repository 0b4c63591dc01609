"""An arm in this process: specjax, its loop on a thread of its own."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from specjax import __version__
from specjax.ab import client
from specjax.ab.arms import Ask, Messages, Spec
from specjax.ab.records import Record, failed
from specjax.engine.llm import LLM
from specjax.engine.params import SamplingParams
from specjax.engine.progress import bar
from specjax.engine.service import Failed, Full, Service, Ticket
from specjax.metrics import SpecDecodeCounters


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
        self, messages: Messages, name: str, began: float, salt: str
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

    async def close(self) -> None:
        """Hold nothing: tickets belong to their requests."""

    def score(self, prompt: str, tokens: Sequence[int]) -> list[float]:
        """Return the logprob of tokens after a prompt."""
        ids = [*self.llm.get_tokenizer().encode(prompt), *tokens]
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        said = self._finish(ids, params).prompt_logprobs() or []
        places = range(len(ids) - len(tokens), len(ids))
        return [(said[i] or {})[ids[i]].logprob for i in places]

    def greedy(self, prompt: str, tokens: int) -> tuple[Sequence[int], Sequence[float] | None]:
        """Return the most likely continuation and its logprobs."""
        params = SamplingParams(temperature=0.0, max_tokens=tokens, logprobs=0)
        done = self._finish(self.llm.get_tokenizer().encode(prompt), params).completion()
        said = zip(done.token_ids, done.logprobs or (), strict=True)
        return done.token_ids, [entry[token].logprob for token, entry in said]

    def _finish(self, ids: Sequence[int], params: SamplingParams) -> Ticket:
        async def wait() -> Ticket:
            (ticket,) = self.service.submit({"prompt_token_ids": list(ids)}, params)
            async for _ in ticket:
                pass
            return ticket

        return asyncio.run(wait())


@contextmanager
def local(
    spec: Spec, ask: Ask, model: str, concurrency: int, max_model_len: int | None
) -> Iterator[LocalArm]:
    """Load specjax, its loop on a thread of its own; nothing is compiled while it is measured."""
    llm = LLM(
        model,
        speculative_config=spec.config,
        max_num_seqs=concurrency,
        max_model_len=max_model_len,
    )
    service = Service(llm, max_waiting=1024)
    try:
        with bar(f"compiling {spec.label}") as shown:
            service.warm_up(shown)
        yield LocalArm(spec, ask, llm, service)
    finally:
        service.close(drain=False)
