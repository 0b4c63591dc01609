"""An arm in this process: specjax, with the engine loop on its own thread."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from specjax import __version__
from specjax.ab.arms import Ask, Messages, Spec
from specjax.ab.client import to_record
from specjax.ab.records import Record, failed
from specjax.core.metrics import SpecDecodeCounters
from specjax.engine.llm import LLM
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.progress import bar
from specjax.engine.service import Failed, Full, RequestStream, Service
from specjax.measure.streaming import Stream


@dataclass
class LocalArm:
    """specjax in this process."""

    spec: Spec
    ask: Ask
    service: Service

    def about(self) -> dict[str, Any]:
        """Return version and dtype, for the manifest."""
        return {"version": __version__, "dtype": self.service.core.model_config.dtype}

    async def complete(
        self, messages: Messages, name: str, began: float, salt: str
    ) -> tuple[Record, str]:
        """Return the record and text of one request, timed when tokens reach this thread."""
        ask, start = self.ask, time.perf_counter()
        tokenizer = self.service.core.tokenizer
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
            (request_stream,) = self.service.submit(prompt, params)
            async with asyncio.timeout(ask.timeout):
                async for delta in request_stream:
                    text, reason = text + delta.text, delta.finish_reason
                    if delta.token_ids:
                        times.append(time.perf_counter() - start)
                        counts.append(len(delta.token_ids))
        except TimeoutError:
            request_stream.abort()
            return fail("timeout")
        except (Full, Failed, ValueError) as error:
            return fail(f"{type(error).__name__}: {error}")
        done = request_stream.completion()
        metrics = done.spec_decode_metrics
        stream = Stream(
            text=text,
            sent=start,
            times=times,
            end=time.perf_counter() - start,
            counts=counts,
            tokens=list(done.token_ids),
            input_tokens=len(request_stream.prompt_token_ids),
            output_tokens=len(done.token_ids),
            finish_reason=reason,
            metrics={} if metrics is None else {"speculative_decoding": metrics.to_dict()},
        )
        return to_record(stream, name, began), text

    async def counters(self) -> SpecDecodeCounters | None:
        """Return the service's counters; None for plain decoding."""
        return self.service.stats().counters if self.spec.config else None

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""

    def score(self, prompt: str, tokens: Sequence[int]) -> list[float]:
        """Return the logprobs of tokens after a prompt."""
        ids = [*self.service.core.tokenizer.encode(prompt), *tokens]
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        logprobs = self._finish(ids, params).prompt_logprobs() or []
        places = range(len(ids) - len(tokens), len(ids))
        return [(logprobs[i] or {})[ids[i]].logprob for i in places]

    def greedy(self, prompt: str, tokens: int) -> tuple[Sequence[int], Sequence[float] | None]:
        """Return the greedy continuation and its logprobs."""
        params = SamplingParams(temperature=0.0, max_tokens=tokens, logprobs=0)
        done = self._finish(self.service.core.tokenizer.encode(prompt), params).completion()
        entries = zip(done.token_ids, done.logprobs or (), strict=True)
        return done.token_ids, [entry[token].logprob for token, entry in entries]

    def _finish(self, ids: Sequence[int], params: SamplingParams) -> RequestStream:
        async def wait() -> RequestStream:
            (request_stream,) = self.service.submit({"prompt_token_ids": list(ids)}, params)
            async for _ in request_stream:
                pass
            return request_stream

        return asyncio.run(wait())


@contextmanager
def local(
    spec: Spec, ask: Ask, model: str, concurrency: int, max_model_len: int | None
) -> Iterator[LocalArm]:
    """Yield a loaded arm with every program that the comparison needs compiled."""
    llm = LLM(
        model,
        speculative_config=spec.config,
        max_num_seqs=concurrency,
        max_model_len=max_model_len,
    )
    service = Service(llm.core, max_waiting=1024)
    try:
        with bar(f"compiling {spec.label}") as shown:
            service.warm_up(shown)
        yield LocalArm(spec, ask, service)
    finally:
        service.close(drain=False)
