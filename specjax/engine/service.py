"""``Service``: an LLM whose loop runs on a thread of its own, for many callers at once."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import NamedTuple

from specjax.engine.intake import Prompt
from specjax.engine.llm import LLM
from specjax.engine.outputs import CompletionOutput, Logprob
from specjax.engine.params import SamplingParams
from specjax.metrics import SpecDecodeCounters


class Full(RuntimeError):
    """The queue is full, or the service is closing: try again later (HTTP 503)."""


class Failed(RuntimeError):
    """The request could not be completed: its logits were not finite, or the engine died."""


class Delta(NamedTuple):
    """What a sample has said since the last delta."""

    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None  # one mapping per token, if asked for
    finish_reason: str | None = None  # "stop", "length" or "abort"; only in the last delta
    stop_reason: int | str | None = None  # the stop string or stop token id; None for EOS


@dataclass
class Times:
    """When things happened to a sample, in seconds of ``time.perf_counter``; None: not yet."""

    arrived: float
    started: float | None = None  # its prompt is being read; queue time = started - arrived
    first_token: float | None = None
    finished: float | None = None


class Stats(NamedTuple):
    """The state of the service, and totals since it started."""

    running: int  # being read or decoding
    waiting: int
    slots: int  # rows of the compiled step now in use
    max_num_seqs: int
    cache_usage: float  # share of the cache's positions that hold tokens
    num_prompt_tokens: int
    num_generation_tokens: int
    num_finished: dict[str, int]  # by finish reason: "stop", "length", "abort", "error"
    counters: SpecDecodeCounters


class Ticket:
    """One sample on its way: an asynchronous iterator over its deltas.

    A slow reader gets merged deltas, so that it holds up nobody and memory stays bounded by
    the sample's length. The last delta has a ``finish_reason``; the iteration then ends.
    Raises ``Failed`` while iterating if the request failed. One reader per ticket.
    """

    index: int  # which of the request's n samples
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    times: Times

    def __aiter__(self) -> AsyncIterator[Delta]:
        raise NotImplementedError

    def abort(self) -> None:
        """Stop the sample; its slot is free within two steps. From any thread, at any time."""
        raise NotImplementedError

    def completion(self) -> CompletionOutput:
        """Describe the finished sample as a whole, ``spec_decode_metrics`` included."""
        raise NotImplementedError

    def prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """Return one mapping per prompt token (None for the first), once it has finished."""
        raise NotImplementedError


class Service:
    """Run an LLM's loop on a thread of its own. Every method may be called from any thread.

    Args:
        llm: nobody else may use it meanwhile.
        max_waiting: how many samples may wait for a slot.
        max_num_batched_tokens: the most prompt positions to read between two rounds.
    """

    def __init__(self, llm: LLM, *, max_waiting: int, max_num_batched_tokens: int | None = None):
        raise NotImplementedError

    def warm_up(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Compile everything that will ever run; ``on_progress`` is told (done, all)."""
        raise NotImplementedError

    def submit(self, prompt: Prompt, params: SamplingParams) -> list[Ticket]:
        """Queue one request and return a ticket for each of its n samples.

        Raises ValueError for a bad request and ``Full`` when not all samples fit the queue.
        """
        raise NotImplementedError

    def stats(self) -> Stats:
        """Return where the service stands."""
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        """Whether the engine thread runs (it ends on ``close`` and when a step raises)."""
        raise NotImplementedError

    def close(self, *, drain: bool) -> None:
        """Accept nothing more, finish what is queued (``drain``) or abort it, and return then."""
        raise NotImplementedError
