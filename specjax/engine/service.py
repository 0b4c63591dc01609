"""``Service``: runs an engine core on a thread of its own, for many callers at once."""

import bisect
import dataclasses
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from specjax.core.metrics import SpecDecodeCounters
from specjax.core.types import Params
from specjax.drafters.fallback import with_first
from specjax.engine.core import EngineCore
from specjax.engine.driver import sharding_of
from specjax.engine.input_processor import Prompt
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.output_processor import Sample
from specjax.engine.plan import Plan
from specjax.engine.request_state import RequestState
from specjax.engine.request_stream import Delta, Failed, FormFailed, RequestStream, Times
from specjax.engine.scheduler import Full, Scheduler
from specjax.engine.transcript import Transcript
from specjax.engine.warm import warm

logger = logging.getLogger(__name__)

__all__ = ["Delta", "Failed", "FormFailed", "Full", "RequestStream", "Service", "Stats", "Times"]


class Stats(NamedTuple):
    """The load of a service, and its totals since it started."""

    running: int  # in prefill or decoding
    waiting: int
    slots: int  # rows of the compiled step now in use
    max_num_seqs: int
    capacity: int  # of a row's cache, in tokens
    cache_usage: float  # share of the cache's positions that hold tokens
    num_prompt_tokens: int
    num_generation_tokens: int
    num_finished: dict[str, int]  # by finish reason: "stop", "length", "abort", "error"
    num_rejected: int  # samples that found the queue full
    prefix_cache_queries: int | None  # prompt tokens that were looked up; None: no prefix cache
    prefix_cache_hits: int  # those that need not be read
    iterations: tuple[int, ...]  # steps by their number of tokens: one count per ITERATION_BUCKETS
    counters: SpecDecodeCounters


# Upper bounds (vLLM's) for the tokens, read and generated, that one step completes.
ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, math.inf)
# Seconds before the thread that compiles begins: it traces in Python, and beside it a server's
# first answer took 0.3 s instead of 0.15.
HEAD_START = 1.0


class Job(NamedTuple):
    """A sample in the loop."""

    stream: RequestStream
    transcript: Transcript


class Service:
    """Runs requests on a thread of its own. Every method may be called from any thread.

    Args:
        core: must not be used elsewhere meanwhile.
        max_waiting: the most samples that may wait for a slot.
        max_num_batched_tokens: the most prompt positions to prefill between two rounds.
        prefix_cache_bytes: for the beginnings of prompts that are kept; 0: none is.

    ``on_answer``, if set, is called on the engine's thread with the tokens of each completed
    sample, prompt and answer. It must return at once.
    """

    on_answer: Callable[[list[int]], None] | None = None

    def __init__(
        self,
        core: EngineCore,
        *,
        max_waiting: int,
        max_num_batched_tokens: int | None = None,
        prefix_cache_bytes: int = 0,
    ):
        self.core = core
        self.prefixes = core.new_prefix_cache(prefix_cache_bytes)
        self._plan = core.plan_serving(max_num_batched_tokens)
        self._scheduler = Scheduler(self._plan.sizes, max_waiting)
        self._loop = core.new_loop(
            self._plan, self._scheduler, self._watch, alternate=True, prefixes=self.prefixes
        )
        self._jobs: dict[RequestState, Job] = {}
        self._aborted: list[RequestState] = []
        self._num_requests = self._num_samples = 0
        self._num_prompt_tokens = self._num_generation_tokens = self._num_rejected = 0
        self._iterations = [0] * len(ITERATION_BUCKETS)
        self._num_finished: dict[str, int] = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self._counters = SpecDecodeCounters.zeros(core.depth)
        self._changed = threading.Condition()  # guards the queue, the aborted, and the totals
        self._closing, self._dead = threading.Event(), False
        self._compiling: threading.Thread | None = None
        self._compiled: Plan | None = None  # for the loop to use
        self._updated: Params | None = None  # likewise
        self._thread = threading.Thread(target=self._serve, name="specjax engine", daemon=True)

    def warm_up(
        self, on_progress: Callable[[int, int], None] | None = None, *, wait: bool = True
    ) -> None:
        """Compile before the first ``submit``; else each program is compiled when first needed.

        Args:
            on_progress: called with the numbers of compiled programs and of those to wait for.
            wait: for every program. Otherwise for the few that serve any request; another thread
                compiles the rest, meanwhile with the memory of a second batch. On several
                devices, and with npu_bridge, all are waited for: there two threads must not run
                programs.
        """
        if self.core.corpus is not None:
            self.core.corpus.compile()
        aside = not wait and self.core.driver.asynchronous
        aside = aside and sharding_of(self.core.params) is not None
        first, *rest = self._plan.stages() if aside else [self._plan]
        self._loop.use(first)
        for done, total in self._compile(first):
            if on_progress is not None:
                on_progress(done, total)
        if aside:
            self._compiling = threading.Thread(
                target=self._compile_rest, args=[rest], name="specjax compiler"
            )
            self._compiling.start()

    @property
    def compiling(self) -> bool:
        """Return whether a thread still compiles programs."""
        return self._compiling is not None and self._compiling.is_alive()

    def submit(self, prompt: Prompt, params: SamplingParams) -> list[RequestStream]:
        """Queue one request and return a stream for each of its n samples.

        Raises:
            ValueError: the request is wrong.
            Full: not all samples fit the queue; none has been queued.
        """
        return self.submit_ids(self.core.input_processor.prompt_ids(prompt), params)

    def submit_ids(
        self,
        ids: Sequence[int],
        params: SamplingParams,
        *,
        cache_salt: str = "",
        priority: int = 0,
    ) -> list[RequestStream]:
        """Queue one request, as ``submit``, whose ids ``InputProcessor.prompt_ids`` returned.

        Args:
            cache_salt: only prompts of the same salt share what was read of them.
            priority: of the waiting requests the lowest runs first, then the oldest.
        """
        with self._changed:
            number, self._num_requests = self._num_requests, self._num_requests + 1
        requests = self.core.process(ids, params, number)
        self._plan.check_request(requests[0])
        jobs = {}
        for i, request in enumerate(requests):
            state = RequestState(0, request._replace(cache_salt=cache_salt, priority=priority))
            stream = RequestStream(state, i, self.core.tokenizer, self.core.depth, self._abort)
            jobs[state] = Job(stream, self.core.new_transcript(state))
        with self._changed:
            if self._closing.is_set() or self._dead:
                raise Full("the service is closing and accepts nothing more.")
            for state in jobs:
                state.index, self._num_samples = self._num_samples, self._num_samples + 1
            try:
                self._scheduler.put(list(jobs))
            except Full:
                self._num_rejected += len(jobs)
                raise
            self._jobs |= jobs
            if not self._thread.is_alive():
                self._thread.start()
            self._changed.notify()
        return [job.stream for job in jobs.values()]

    def update_drafter(self, folder: str | Path) -> None:
        """Exchange the drafting head's weights between two rounds, while requests run.

        Returns as soon as the weights are read; the next round drafts with them.

        Raises:
            ValueError: there is no head, or the folder holds another one.
        """
        self._updated = self.core.update_drafter(folder)

    def stats(self) -> Stats:
        """Return the present load and the totals."""
        with self._changed:
            scheduler, plan = self._scheduler, self._plan
            decoding = list(scheduler.decoding.values())
            return Stats(
                running=scheduler.num_running,
                waiting=len(scheduler.waiting),
                slots=scheduler.num_slots,
                max_num_seqs=plan.sizes[-1],
                capacity=plan.capacity,
                cache_usage=sum(one.length for one in decoding) / (plan.sizes[-1] * plan.capacity),
                num_prompt_tokens=self._num_prompt_tokens,
                num_generation_tokens=self._num_generation_tokens,
                num_finished=dict(self._num_finished),
                num_rejected=self._num_rejected,
                prefix_cache_queries=None if self.prefixes is None else self.prefixes.num_queries,
                prefix_cache_hits=0 if self.prefixes is None else self.prefixes.num_hits,
                iterations=tuple(self._iterations),
                counters=self._counters,
            )

    @property
    def alive(self) -> bool:
        """Return whether requests are accepted: not after ``close``, nor after an exception."""
        return not (self._closing.is_set() or self._dead)

    @property
    def dead(self) -> bool:
        """Return whether an exception has ended the engine's thread."""
        return self._dead

    def close(self, *, drain: bool) -> None:
        """Stop accepting requests; return when all have been completed, or aborted.

        Args:
            drain: complete the queued requests. ``close(drain=False)`` from another thread then
                aborts those that are left.
        """
        with self._changed:
            self._closing.set()
            if not drain:
                self._aborted += self._jobs
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        if self._compiling is not None:
            self._compiling.join()

    def _compile(self, plan: Plan) -> Iterator[tuple[int, int]]:
        """Compile a plan's programs, whatever the loop does meanwhile: (done, total) each."""
        programs, corpus = self._loop.programs, self.core.corpus
        params = programs.params
        if corpus is not None:
            params = params._replace(draft=with_first(params.draft, corpus.copy()))
        own = dataclasses.replace(programs, plan=plan, params=params)
        return warm(own, keeps_prefixes=self.prefixes is not None)

    def _compile_rest(self, plans: Sequence[Plan]) -> None:
        """Compile what is left until the service is closed (a thread of its own)."""
        self._closing.wait(HEAD_START)
        start = time.monotonic()
        for plan in plans:
            for _ in self._compile(plan):
                if self._closing.is_set():
                    return
            with self._changed:
                self._compiled = plan
        logger.info("compiled all other shapes in %.1f s", time.monotonic() - start)

    def _abort(self, request_state: RequestState) -> None:
        with self._changed:
            self._aborted.append(request_state)
            self._changed.notify()

    def _serve(self) -> None:
        """Run the loop until the service is closed (the engine's thread)."""
        try:
            while self._prepare():
                before = self._num_prompt_tokens + self._num_generation_tokens
                for request_state in self._loop.step():
                    self._deliver(request_state)
                count = self._num_prompt_tokens + self._num_generation_tokens - before
                if count:
                    self._iterations[bisect.bisect_left(ITERATION_BUCKETS, count)] += 1
        finally:
            with self._changed:
                self._dead, left = sys.exception() is not None, self._jobs
                self._jobs = {}
            for job in left.values():
                job.stream.fail("the engine has stopped")

    def _prepare(self) -> bool:
        """Wait for requests and remove the aborted; return whether there is a step to run."""
        with self._changed:
            while True:
                while not (self._aborted or len(self._scheduler) or self._closing.is_set()):
                    self._changed.wait()
                if self._compiled is not None:
                    self._loop.use(self._compiled)
                    self._compiled = None
                updated, self._updated = self._updated, None
                if updated is not None:
                    self._loop.programs.params = updated
                aborted, self._aborted = self._aborted, []
                for request_state in aborted:
                    if request_state in self._jobs:
                        self._loop.abort(request_state)
                        self._deliver(request_state)
                for starting in self._loop.next():
                    times = self._jobs[starting].stream.times
                    times.started = times.started or time.perf_counter()
                if len(self._scheduler) or self._closing.is_set():
                    return len(self._scheduler) > 0

    def _watch(self, request_state: RequestState) -> int | None:
        return self._jobs[request_state].transcript.follow(request_state)

    def _deliver(self, request_state: RequestState) -> None:
        """Count a sample's new tokens, and push them to its stream."""
        job = self._jobs[request_state]
        is_new = job.stream.num_rounds == 0
        fresh = request_state.rounds[job.stream.num_rounds :]
        drafted = fresh[1:] if is_new else fresh  # the first token has no draft
        with self._changed:
            self._num_prompt_tokens += len(request_state.request.prompt) if is_new and fresh else 0
            self._num_generation_tokens += sum(len(one.tokens) for one in fresh)
            self._counters = self._counters.add(
                [len(one.drafted) for one in drafted], [one.num_accepted for one in drafted]
            )
            if request_state.finish_reason is not None:
                self._num_finished[request_state.finish_reason] += 1
                del self._jobs[request_state]
        if self.on_answer is not None and request_state.finish_reason in ("stop", "length"):
            self.on_answer([*request_state.request.prompt, *request_state.tokens])
        job.stream.push(Sample(request_state, job.transcript))
