"""``Service``: an LLM whose loop runs on a thread of its own, for many callers at once."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from specjax.engine import intake
from specjax.engine.intake import Prompt
from specjax.engine.llm import LLM
from specjax.engine.loop import Loop
from specjax.engine.params import SamplingParams
from specjax.engine.plan import served
from specjax.engine.report import Sample
from specjax.engine.rounds import Progress
from specjax.engine.rows import NOBODY, Request, layout
from specjax.engine.scheduler import Full, Scheduler
from specjax.engine.ticket import Delta, Failed, Ticket, Times
from specjax.engine.transcript import Transcript
from specjax.engine.warm import warm
from specjax.metrics import SpecDecodeCounters

__all__ = ["Delta", "Failed", "Full", "Service", "Stats", "Ticket", "Times"]


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


class Job(NamedTuple):
    """A sample in the loop."""

    ticket: Ticket
    transcript: Transcript


class Service:
    """Run an LLM's loop on a thread of its own. Every method may be called from any thread.

    Args:
        llm: nobody else may use it meanwhile.
        max_waiting: how many samples may wait for a slot.
        max_num_batched_tokens: the most prompt positions to read between two rounds.
    """

    def __init__(self, llm: LLM, *, max_waiting: int, max_num_batched_tokens: int | None = None):
        self.llm, self._corpus = llm, llm.corpus
        drafter, vocab_size = llm.engine.drafter, llm.engine.target.vocab_size
        usual = NOBODY._replace(
            params=llm.get_default_sampling_params(), stop_ids=llm.intake.eos_ids
        )
        plan = served(
            layout([usual], vocab_size, drafter.depth),
            llm.max_model_len,
            drafter.room,
            llm.max_num_seqs,
            max_num_batched_tokens,
        )
        params, learn = llm.start_learning()
        self._scheduler = Scheduler(plan.sizes, max_waiting)
        self._loop = Loop(
            llm.engine,
            params,
            plan,
            schedule=llm.schedule,
            watch=self._watch,
            learn=learn,
            export=None if llm.connector is None else partial(llm.connector.save, 0),
            alternate=True,
            scheduler=self._scheduler,
            driver=llm.driver,
        )
        self._jobs: dict[Progress, Job] = {}
        self._aborted: list[Progress] = []
        self._num_requests = self._num_samples = 0
        self._num_prompt_tokens = self._num_generation_tokens = 0
        self._num_finished: dict[str, int] = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self._counters = SpecDecodeCounters.zeros(drafter.depth)
        self._news = threading.Condition()  # guards the queue, what is aborted, and the totals
        self._closing = self._dead = False
        self._thread = threading.Thread(target=self._serve, name="specjax engine", daemon=True)

    def warm_up(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Compile everything that will ever run; ``on_progress`` is told (done, all).

        To be called before the first ``submit``; without it programs are compiled as they are met.
        """
        for done, total in warm(self._loop, self._corpus):
            if on_progress is not None:
                on_progress(done, total)

    def submit(self, prompt: Prompt, params: SamplingParams) -> list[Ticket]:
        """Queue one request and return a ticket for each of its n samples.

        Raises ValueError for a bad request and ``Full`` when not all samples fit the queue.
        """
        with self._news:
            number, self._num_requests = self._num_requests, self._num_requests + 1
        requests = intake.requests(self.llm.intake, prompt, params, number)
        self._check(requests[0])
        if self.llm.connector is not None:
            self.llm.connector.check(params)
        tokenizer, depth = self.llm.intake.tokenizer, self.llm.engine.drafter.depth
        jobs = {}
        for i, request in enumerate(requests):
            progress = Progress(0, request)
            transcript = Transcript(tokenizer, progress, self.llm.intake.eos_ids)
            ticket = Ticket(progress, i, tokenizer, depth, self._abort)
            jobs[progress] = Job(ticket, transcript)
        with self._news:
            if self._closing or self._dead:
                raise Full("the service is closing and accepts nothing more.")
            for progress in jobs:
                progress.index, self._num_samples = self._num_samples, self._num_samples + 1
            self._scheduler.put(list(jobs))
            self._jobs |= jobs
            if not self._thread.is_alive():
                self._thread.start()
            self._news.notify()
        return [job.ticket for job in jobs.values()]

    def stats(self) -> Stats:
        """Return where the service stands."""
        with self._news:
            scheduler, plan = self._scheduler, self._loop.plan
            live = list(scheduler.live.values())
            return Stats(
                running=scheduler.num_running,
                waiting=len(scheduler.waiting),
                slots=scheduler.num_slots,
                max_num_seqs=plan.sizes[-1],
                cache_usage=sum(one.length for one in live) / (plan.sizes[-1] * plan.capacity),
                num_prompt_tokens=self._num_prompt_tokens,
                num_generation_tokens=self._num_generation_tokens,
                num_finished=dict(self._num_finished),
                counters=self._counters,
            )

    @property
    def alive(self) -> bool:
        """Whether requests are served (not after ``close``, nor after a step has raised)."""
        return not (self._closing or self._dead)

    def close(self, *, drain: bool) -> None:
        """Accept nothing more, finish what is queued (``drain``) or abort it, and return then.

        A second call may change its mind: ``close(drain=False)`` while another one drains.
        """
        with self._news:
            self._closing = True
            if not drain:
                self._aborted += self._jobs
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _check(self, request: Request) -> None:
        """Refuse what no compiled program can hold."""
        most = self._loop.plan.levels[-1].layout
        words = request.bad_words
        for what, count, limit in (
            ("stop_token_ids", len(request.stop_ids), most.num_stop_ids),
            ("bad_words", len(words), most.num_bad_words),
            ("tokens of a bad word", max(map(len, words), default=0), most.bad_word_length),
        ):
            if count > limit:
                raise ValueError(f"{what}: at most {limit} are served, got {count}.")

    def _abort(self, progress: Progress) -> None:
        with self._news:
            self._aborted.append(progress)
            self._news.notify()

    def _serve(self) -> None:
        """Run the loop until the service is closed (the engine's thread)."""
        try:
            while self._prepare():
                for progress in self._loop.step():
                    self._deliver(progress)
        finally:
            with self._news:
                self._dead, left = True, self._jobs
                self._jobs = {}
            for job in left.values():
                job.ticket.fail("the engine has stopped")

    def _prepare(self) -> bool:
        """Wait for work and let go of what was aborted; say whether there is a step to run."""
        with self._news:
            while True:
                while not (self._aborted or len(self._scheduler) or self._closing):
                    self._news.wait()
                aborted, self._aborted = self._aborted, []
                for progress in aborted:
                    if progress in self._jobs:
                        self._loop.abort(progress)
                        self._deliver(progress)
                for starting in self._loop.next():
                    times = self._jobs[starting].ticket.times
                    times.started = times.started or time.perf_counter()
                if len(self._scheduler) or self._closing:
                    return len(self._scheduler) > 0

    def _watch(self, progress: Progress) -> int | None:
        return self._jobs[progress].transcript.follow(progress)

    def _deliver(self, progress: Progress) -> None:
        """Count what is new about a sample, and hand it on."""
        job = self._jobs[progress]
        is_new = job.ticket.num_rounds == 0
        fresh = progress.rounds[job.ticket.num_rounds :]
        drafted = fresh[1:] if is_new else fresh  # the first token has no draft
        with self._news:
            self._num_prompt_tokens += len(progress.request.prompt) if is_new and fresh else 0
            self._num_generation_tokens += sum(len(one.tokens) for one in fresh)
            self._counters = self._counters.add(
                [len(one.drafted) for one in drafted], [one.num_accepted for one in drafted]
            )
            if progress.finish_reason is not None:
                self._num_finished[progress.finish_reason] += 1
                del self._jobs[progress]
        job.ticket.tell(Sample(progress, job.transcript))
