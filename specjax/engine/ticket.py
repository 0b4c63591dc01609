"""``Ticket``: what a caller of the service holds while its sample is on the way."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import NamedTuple

from specjax.engine.outputs import CompletionOutput, Logprob
from specjax.engine.params import SamplingParams
from specjax.engine.report import Sample, completion, logprobs
from specjax.engine.rounds import FinishReason, Progress
from specjax.engine.tokenizer import Tokenizer


class Failed(RuntimeError):
    """The request could not be completed: its logits were not finite, or the engine died."""


class Delta(NamedTuple):
    """What a sample has said since the last delta."""

    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None  # one mapping per token, if asked for
    finish_reason: FinishReason | None = None  # in the last delta; never "error"
    stop_reason: int | str | None = None  # the stop string or stop token id; None for EOS


@dataclass
class Times:
    """When things happened to a sample, in seconds of ``time.perf_counter``; None: not yet."""

    arrived: float
    started: float | None = None  # its prompt is being read; queue time = started - arrived
    first_token: float | None = None
    finished: float | None = None


class Ticket:
    """One sample on its way: an asynchronous iterator over its deltas.

    A slow reader gets merged deltas, so that it holds up nobody and memory stays bounded by
    the sample's length. The last delta has a ``finish_reason``; the iteration then ends.
    Raises ``Failed`` while iterating if the request failed. One reader per ticket.
    """

    def __init__(
        self,
        progress: Progress,
        sample_index: int,
        tokenizer: Tokenizer,
        depth: int,
        abort: Callable[[Progress], None],
    ):
        self.index = sample_index  # which of the request's n samples
        self.prompt_token_ids = progress.request.prompt
        self.params: SamplingParams = progress.request.params
        self.times = Times(time.perf_counter())
        self._progress, self._tokenizer, self._depth = progress, tokenizer, depth
        self._abort = abort
        self._sample: Sample | None = None  # set when finished
        self._error: str | None = None
        self.num_rounds = self._num_shown = 0  # rounds and characters that are in a delta
        self._lock = threading.Lock()
        self._pending: Delta | None = None
        self._reader: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def tell(self, sample: Sample) -> None:
        """Take what is new (on the engine's thread)."""
        progress, transcript = sample
        now, fresh = time.perf_counter(), progress.rounds[self.num_rounds :]
        tokens = [token for one in fresh for token in one.tokens]
        text, said = transcript.text[self._num_shown :], None
        if tokens and self.times.first_token is None:
            self.times.first_token = now
        if self.params.logprobs is not None:
            scored = [token for one in fresh for token in one.logprobs]
            said = logprobs(scored, self.params.logprobs, self._tokenizer)
        self.num_rounds, self._num_shown = len(progress.rounds), len(transcript.text)
        if progress.finish_reason is not None:
            self._sample, self.times.finished = sample, now
        if progress.finish_reason == "error":
            self.fail("the model's output was not finite")
        elif tokens or text or progress.finish_reason is not None:
            self._put(Delta(text, tokens, said, progress.finish_reason, transcript.stop_reason))

    def fail(self, why: str) -> None:
        """Say that the sample will not be completed."""
        self.times.finished = self.times.finished or time.perf_counter()
        self._error = why
        self._put(Delta("", [], None, "error"))

    def _put(self, delta: Delta) -> None:
        with self._lock:
            self._pending = delta if self._pending is None else merge(self._pending, delta)
            if self._reader is None:
                return
            loop, event = self._reader
        try:
            loop.call_soon_threadsafe(event.set)
        except RuntimeError:  # the reader's loop is closed: nobody listens
            self._abort(self._progress)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        event = asyncio.Event()
        with self._lock:
            self._reader = asyncio.get_running_loop(), event
        while True:
            with self._lock:
                delta, self._pending = self._pending, None
                event.clear()
            if delta is None:
                await event.wait()
                continue
            if self._error is not None:
                raise Failed(self._error)
            yield delta
            if delta.finish_reason is not None:
                return

    def abort(self) -> None:
        """Stop the sample; its slot is free within two steps. From any thread, at any time."""
        self._abort(self._progress)

    def completion(self) -> CompletionOutput:
        """Describe the finished sample as a whole, ``spec_decode_metrics`` included."""
        return completion(self.index, self._finished(), self._tokenizer, self._depth)

    def prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """Return one mapping per prompt token (None for the first), once it has finished."""
        wanted = self.params.prompt_logprobs
        if wanted is None:
            return None
        scored = self._finished().progress.prompt_logprobs
        return [None, *logprobs(scored, wanted, self._tokenizer)]

    def _finished(self) -> Sample:
        if self._sample is None:
            raise RuntimeError("the sample has not finished: read its deltas to the end first.")
        return self._sample


def merge(first: Delta, second: Delta) -> Delta:
    """Join two deltas that nobody has read."""
    return second._replace(
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=None if first.logprobs is None else first.logprobs + (second.logprobs or []),
    )
