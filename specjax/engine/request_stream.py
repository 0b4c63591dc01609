"""``RequestStream``: the tokens of one sample of a ``Service``, as they are generated."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import NamedTuple

from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.output_processor import Sample, completion, logprobs, output_logprobs
from specjax.engine.outputs import CompletionOutput, Logprob
from specjax.engine.request_state import FinishReason, RequestState
from specjax.engine.text.tokenizer import Tokenizer


class Failed(RuntimeError):
    """The request could not be completed: its logits were not finite, or the engine stopped."""


class FormFailed(Failed):
    """The grammar that the request brought exceeded its limits while the text was written."""


class Delta(NamedTuple):
    """The new tokens of a sample since the last delta."""

    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None  # one mapping per token, if wanted
    finish_reason: FinishReason | None = None  # in the last delta; never "error"
    stop_reason: int | str | None = None  # the stop string or stop token id; None for EOS


@dataclass
class Times:
    """The times of a sample's events, in seconds of ``time.perf_counter``; None: not yet."""

    arrived: float
    started: float | None = None  # prefill has started; queue time = started - arrived
    first_token: float | None = None
    finished: float | None = None


class RequestStream:
    """An asynchronous iterator over the deltas of one sample, for one reader.

    A slow reader gets merged deltas, so that it delays no other request and memory is bounded by
    the sample's length. The last delta has a ``finish_reason``; the iteration then ends.

    Raises:
        Failed: while iterating, if the request failed.
    """

    def __init__(
        self,
        request_state: RequestState,
        sample_index: int,
        tokenizer: Tokenizer,
        depth: int,
        abort: Callable[[RequestState], None],
    ):
        self.index = sample_index  # which of the request's n samples
        self.prompt_token_ids = request_state.request.prompt
        self.params: SamplingParams = request_state.request.params
        self.max_tokens = request_state.request.limit - len(self.prompt_token_ids)
        self.times = Times(time.perf_counter())
        self._progress, self._tokenizer, self._depth = request_state, tokenizer, depth
        self._abort = abort
        self._sample: Sample | None = None  # set when finished
        self._error: Failed | None = None
        self.num_rounds = self._num_shown = 0  # rounds and characters that are in a delta
        self._lock = threading.Lock()
        self._pending: Delta | None = None
        self._reader: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def push(self, sample: Sample) -> None:
        """Add the sample's new tokens; called on the engine's thread."""
        request_state, transcript = sample
        now, fresh = time.perf_counter(), request_state.rounds[self.num_rounds :]
        tokens = [token for one in fresh for token in one.tokens]
        text, found = transcript.text[self._num_shown :], None
        if tokens and self.times.first_token is None:
            self.times.first_token = now
        if self.params.num_logprobs is not None:
            scored = [token for one in fresh for token in one.logprobs]
            found = output_logprobs(scored, self.params, self._tokenizer)
        self.num_rounds, self._num_shown = len(request_state.rounds), len(transcript.text)
        if request_state.finish_reason is not None:
            self._sample, self.times.finished = sample, now
        if request_state.finish_reason == "error":
            kind = FormFailed if request_state.grammar_failed else Failed
            self.fail(request_state.failure, kind)
        elif tokens or text or request_state.finish_reason is not None:
            reasons = request_state.finish_reason, transcript.stop_reason
            self._put(Delta(text, tokens, found, *reasons))

    def fail(self, why: str, kind: type[Failed] = Failed) -> None:
        """End the stream with an error, which the reader gets."""
        self.times.finished = self.times.finished or time.perf_counter()
        self._error = kind(why)
        self._put(Delta("", [], None, "error"))

    def _put(self, delta: Delta) -> None:
        with self._lock:
            self._pending = delta if self._pending is None else merge(self._pending, delta)
            if self._reader is None:
                return
            loop, event = self._reader
        try:
            loop.call_soon_threadsafe(event.set)
        except RuntimeError:  # the reader's event loop is closed
            self._abort(self._progress)

    def _read(self) -> asyncio.Event:
        """Return the event that is set when something is pending, for the present reader."""
        event = asyncio.Event()
        with self._lock:
            self._reader = asyncio.get_running_loop(), event
        return event

    async def ready(self) -> None:
        """Return when the first delta is there, without taking it. Raises Failed, as iterating."""
        event = self._read()
        while self._pending is None:
            await event.wait()
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[Delta]:
        event = self._read()
        while True:
            with self._lock:
                delta, self._pending = self._pending, None
                event.clear()
            if delta is None:
                await event.wait()
                continue
            if self._error is not None:
                raise self._error
            yield delta
            if delta.finish_reason is not None:
                return

    @property
    def num_cached_tokens(self) -> int:
        """Return how many prompt tokens were read for another request, after the first delta."""
        return self._progress.num_cached

    @property
    def num_stored_tokens(self) -> int:
        """Return how many prompt tokens are kept for others, once the sample has finished."""
        return self._progress.num_stored

    def abort(self) -> None:
        """Stop the sample; its slot is free within two steps. From any thread, at any time."""
        self._abort(self._progress)

    def completion(self) -> CompletionOutput:
        """Return the finished sample's record, with its ``spec_decode_metrics``."""
        return completion(self.index, self._finished(), self._tokenizer, self._depth)

    def prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """Return the prompt's logprobs, after the first delta: None for the first token."""
        wanted = self.params.prompt_logprobs
        if wanted is None:
            return None
        scored = list(self._progress.prompt_logprobs)
        return [None, *logprobs(scored, wanted, self._tokenizer)]

    def _finished(self) -> Sample:
        if self._sample is None:
            raise RuntimeError("the sample has not finished: read its deltas to the end first.")
        return self._sample


def merge(first: Delta, second: Delta) -> Delta:
    """Return two successive deltas as one."""
    return second._replace(
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=None if first.logprobs is None else first.logprobs + (second.logprobs or []),
    )
