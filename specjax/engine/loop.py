"""Continuous batching: read prompts and run rounds, over slots that requests join and leave.

Each request is read alone, as a batch of one, in chunks that depend on its own length only; so
what a row computes while it is read never depends on its mates. Joining and leaving compile
nothing: every program belongs to a shape of the ``Plan``.

A service asks the device for the next thing before it looks at the last answer, so what the host
does takes no time of its own. It learns then that a request has ended when one round more has
been asked for, in which that row is idle.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specjax.cache import width
from specjax.engine import rows
from specjax.engine.driver import XLA, Driver
from specjax.engine.plan import Level, Plan, fitted
from specjax.engine.rounds import Progress
from specjax.engine.rows import Request
from specjax.engine.scheduler import Scheduler
from specjax.sampling import Sampling
from specjax.types import Engine, Params, State, Text

idle = jax.jit(rows.idle, static_argnums=(0, 1, 2))

Watch = Callable[[Progress], int | None]  # how many output tokens to keep, if it should stop
Learn = Callable[[Progress | None], Any]  # what the drafter's parameters are now
Answer = Callable[[], list[Progress]]  # waits for what was asked; returns who has grown by it
Export = Callable[[Progress, Any], Mapping[str, str]]  # a finished row's drafter state, saved


def run(
    engine: Engine,
    params: Params,
    requests: Sequence[Request],
    *,
    max_num_seqs: int,
    max_rounds: int | None = None,
    **options: Any,
) -> Iterator[Progress]:
    """Complete all requests; yield a request's ``Progress`` whenever it has grown.

    ``max_rounds`` bounds the rounds between two looks at the requests; ``options`` are `Loop`'s.
    """
    if not requests:
        return
    drafter, vocab_size = engine.drafter, engine.target.vocab_size
    plan = fitted(requests, vocab_size, drafter.depth, drafter.room, max_num_seqs)
    loop = Loop(engine, params, plan, **options)
    loop.scheduler.num_slots = plan.sizes[-1]
    loop.scheduler.put([Progress(i, request) for i, request in enumerate(requests)])
    while len(loop.scheduler):
        yield from loop.step(max_rounds)


def is_scored(progress: Progress) -> bool:
    """Say whether a request asks for its prompt's log probabilities."""
    return progress.request.params.prompt_logprobs is not None


class Loop:
    """The state of a batch, and what is done with it step by step.

    Args:
        plan: the shapes; ``engine.window`` and the numbers of log probabilities are set by it.
        schedule: how much to draft: entry i is the engine to use while i + 1 requests run, the
            last one also when more do. All of them share ``engine``'s state.
        watch: sees each request that has grown, and may stop it.
        export: sees those that have finished, with their row of the drafter's state.
        learn: sees each then; asked for the drafter's parameters whenever they are used, since
            other runs may have taught it in between.
        alternate: between two rounds read no more than the largest chunk has positions, so that
            rows that run never wait longer, and look at answers late, if the driver works ahead.
            Otherwise all prompts come first that have a slot.
        scheduler: whose queue to serve.
        driver: who runs the programs; ``params`` lie where it wants them.
    """

    def __init__(
        self,
        engine: Engine,
        params: Params,
        plan: Plan,
        *,
        schedule: Sequence[Engine] = (),
        watch: Watch | None = None,
        learn: Learn | None = None,
        export: Export | None = None,
        alternate: bool = False,
        scheduler: Scheduler | None = None,
        driver: Driver = XLA,
    ):
        self.engine, self.params, self.plan, self.driver = engine, params, plan, driver
        self.schedule = tuple(schedule) or (engine,)
        self.scheduler = Scheduler(plan.sizes) if scheduler is None else scheduler
        self.state: State | None = None
        self.level = plan.levels[0]
        self._watch, self._learn, self._export = watch, learn, export
        self._alternate = alternate
        self._rows: State | None = None  # of the requests that are being read
        self._group: list[Progress] = []  # whose row is which
        self._num_read = 0  # positions of each
        self._calm = 0  # rounds for which the batch has been too large
        self._num_unbroken = 0  # positions that were read since the last round
        self._ahead = alternate and driver.ahead
        self._answer: Answer = list  # to what was asked last, if nobody has looked at it

    def step(self, max_rounds: int | None = None) -> list[Progress]:
        """Read one chunk of a prompt or run rounds; return the requests that have grown."""
        answer = self._ask(max_rounds)
        if self._ahead:
            answer, self._answer = self._answer, answer
        grown, reading = answer(), list(self.scheduler.reading)
        if reading and self._num_read >= len(reading[0].request.prompt):
            self._admit(reading)
        return grown

    def _ask(self, max_rounds: int | None) -> Answer:
        reading = self.next()
        chunk = self._next_chunk(reading) if reading else 0
        unbroken = self._num_unbroken + chunk * len(reading)
        patient = self._alternate and self.scheduler.live and unbroken > self.plan.chunks[-1]
        if not reading or patient:
            self._num_unbroken = 0
            return self._run(max_rounds)
        self._num_unbroken = unbroken
        return self._read(chunk)

    def next(self) -> list[Progress]:
        """Return the requests whose prompts are to be read now."""
        return self.scheduler.next(self._together)

    def _together(self, waiting: list[Progress]) -> int:
        """Choose how many of those that come next are read in one pass."""
        plain = itertools.takewhile(lambda one: not is_scored(one), waiting)
        lengths = [len(one.request.prompt) for one in plain]
        return self.plan.together(lengths) if self.driver.ahead else 1

    def abort(self, progress: Progress) -> None:
        """Forget a request wherever it is; its slot is free at once."""
        if progress.finish_reason is None:
            progress.finish_reason = "abort"
            self._note(progress)

    def _next_chunk(self, reading: list[Progress]) -> int:
        """Choose how much of each prompt to read next."""
        left = max(len(one.request.prompt) for one in reading) - self._num_read
        if len(reading) > 1:
            return self.plan.pass_over(len(reading), left)[1]
        return self.plan.next_chunk(self._num_read, left, is_scored(reading[0]))

    def _read(self, chunk: int) -> Answer:
        """Read the next chunk of prompts; with the last one comes the first token."""
        state, start, plan = self._rows, self._num_read, self.plan
        if state is None:
            self._group = list(self.scheduler.reading)
        group = self._group
        longest = max(len(one.request.prompt) for one in group)
        ever = max(one.request.limit for one in group) + self.engine.drafter.room
        window = plan.window(start + chunk + 1, ever)
        if state is None:
            shape = plan.reading.layout, plan.capacity
            laid_out = [rows.row(one.request, *shape) for one in group]
            if len(group) > 1:
                spare = plan.pass_over(len(group), chunk)[0] - len(group)
                laid_out += [rows.nobody(*shape)] * spare
            state = self.begin(rows.beside(laid_out), window)
        state = self.driver.fit(state, window)
        engine = self.reader(window, is_scored(group[0]))
        state, info, prompt = self.driver.prefill(engine, self._taught(), state, start, chunk)
        self._rows, self._num_read = state, start + chunk

        def answer() -> list[Progress]:
            left = [(row, one) for row, one in enumerate(group) if one.finish_reason is None]
            if prompt is not None and left:  # one alone is scored
                ids, values, ranks = jax.device_get(prompt)
                real = min(chunk, longest - 1 - start)
                scored = list(zip(ids[0], values[0], ranks[0], strict=True))
                group[0].prompt_logprobs += scored[:real]
            if start + chunk < longest:
                return []
            found = jax.tree.map(lambda x: x[None], jax.device_get(info))
            for row, one in left:
                one.extend(found, row, 1)
                self._note(one)
            return [one for _, one in left]

        return answer

    def _run(self, max_rounds: int | None) -> Answer:
        """Run rounds for all live rows."""
        self._shrink()
        live, plan = dict(self.scheduler.live), self.plan
        engine = self.decoder(len(live), self._window(), self.level)
        most = min(max_rounds or plan.history, plan.history)
        fewest = 1 if most == 1 else self._fewest()  # one round is run whoever has ended
        state = self.driver.fit(self.state, engine.window)
        self.state, *asked = self.driver.generate(
            engine, self._taught(), state, most, fewest, plan.history
        )

        def answer() -> list[Progress]:
            infos, rounds = jax.device_get(asked)
            left = {slot: one for slot, one in live.items() if one.finish_reason is None}
            if rounds == 0 and left:
                raise RuntimeError(f"no progress in a window of {engine.window}: {plan.capacity=}")
            self._calm += int(rounds)
            for slot, progress in left.items():
                progress.extend(infos, slot, int(rounds))
                self._note(progress)
            return list(left.values())

        return answer

    def begin(self, laid_out: tuple[Text, Sampling, jax.Array], window: int) -> State:
        """Allocate a state for rows, to be read through a window."""
        engine = self.engine._replace(window=window)
        return self.driver.init_state(engine, self.params, *laid_out)

    def stack(self, requests: Sequence[Request], level: Level) -> Sampling:
        """Lay the sampling parameters of a batch out, one row for each request."""
        each = [rows.sampling_row(request, level.layout) for request in requests]
        stacked = jax.tree.map(lambda *leaves: np.concatenate(leaves), *each)
        return self.driver.place(self.params, stacked)

    def reader(self, window: int, scored: bool) -> Engine:
        """Return what reads prompts."""
        return self.engine._replace(
            window=window,
            num_logprobs=self.plan.reading.num_logprobs,
            num_prompt_logprobs=self.plan.num_prompt_logprobs if scored else None,
        )

    def decoder(self, num_running: int, window: int, level: Level) -> Engine:
        """Return what runs rounds of so many rows."""
        engine = self._engine_for(num_running)
        return engine._replace(window=window, num_logprobs=level.num_logprobs)

    def _engine_for(self, num_running: int) -> Engine:
        """Return who drafts how much.

        The rows of a batch that is about to shrink count as more than half of its slots: so few
        engines meet each size.
        """
        counted = max(num_running, self.scheduler.smaller() + 1)
        return self.schedule[min(counted, len(self.schedule)) - 1]

    def _window(self) -> int:
        """Choose what the live rows need to see."""
        room, live = self.engine.drafter.room, self.scheduler.live.values()
        unknown = self.engine.drafter.depth + 1 if self._ahead else 0
        now, ever = max(one.length for one in live), max(one.request.limit for one in live)
        return self.plan.window(min(now + unknown, ever) + room, ever + room)

    def _fewest(self) -> int:
        """Return how many rows must run for the rounds to go on as they are."""
        running, smaller = len(self.scheduler.live), self.scheduler.smaller()
        if self.scheduler.waiting:
            return running
        fewest, least = running, smaller + 1 if running > smaller else 1
        while fewest > least and self._engine_for(fewest - 1) == self._engine_for(running):
            fewest -= 1
        return fewest

    def _taught(self) -> Params:
        """Return the parameters with what the drafter has learned, here or in another run."""
        if self._learn is None:
            return self.params
        return self.params._replace(draft=self._learn(None))

    def _note(self, progress: Progress) -> None:
        """Tell who watches that a request has grown or ended, and let go of it if it has ended."""
        keep = self._watch(progress) if self._watch else None
        if keep is not None:
            progress.cut(keep)
            progress.finish_reason = "stop"
        if self._export and progress.finish_reason not in (None, "abort"):
            state, slot = self._where(progress)
            row = jax.tree.map(lambda leaf: leaf[slot], state.drafter)
            progress.kv_transfer_params = self._export(progress, row)
        if self._learn is not None:
            self._learn(progress)
        if progress.finish_reason is not None:
            self._let_go(progress)

    def _where(self, progress: Progress) -> tuple[State, int]:
        """Return the state that holds a request, and its slot there."""
        if progress in self.scheduler.reading:
            state, slot = self._rows, self._group.index(progress)
        else:
            state, live = self.state, self.scheduler.live
            slot = next(slot for slot, one in live.items() if one is progress)
        assert state is not None
        return state, slot

    def _let_go(self, progress: Progress) -> None:
        slot = self.scheduler.remove(progress)
        if not self.scheduler.reading:
            self._rows, self._num_read = None, 0
        if slot is None or self.state is None:
            return
        if self.scheduler.num_slots == 1:
            self.state = None  # the next one brings its own
            return
        self.state = self.driver.leave(self.state, slot)
        self._lay_out(self.plan.level([one.request for one in self.scheduler.live.values()]))

    def _admit(self, reading: list[Progress]) -> None:
        """Give the requests that have been read slots."""
        found, group = self._rows, self._group
        assert found is not None
        self._rows, self._num_read = None, 0
        for one in reading:
            row = found
            if len(found.text.reason) > 1:
                row = self.driver.select(found, np.full(1, group.index(one), np.int32), 1)
            self._admit_row(one, row)

    def _admit_row(self, progress: Progress, row: State) -> None:
        """Give a request a slot, in a batch that is large enough."""
        scheduler, plan = self.scheduler, self.plan
        self._lay_out(
            plan.level([progress.request, *(one.request for one in scheduler.live.values())])
        )
        if self.level != plan.reading:
            row = row._replace(sampling=self.stack([progress.request], self.level))
        if len(scheduler.live) == scheduler.num_slots:
            self._resize(scheduler.larger())
        slot = scheduler.place(progress)
        if scheduler.num_slots == 1:
            self.state = row  # a batch of one: copied into another, a request took 1 ms longer
            return
        if self.state is None:
            nobody = idle(scheduler.num_slots, self.level.layout, plan.capacity)
            self.state = self.begin(nobody, width(row))
        wider = max(width(self.state), width(row))
        self.state, row = self.driver.fit(self.state, wider), self.driver.fit(row, wider)
        self.state = self.driver.admit(self.state, slot, row)

    def _lay_out(self, level: Level) -> None:
        """Give the batch what its rows ask for, no more."""
        if level == self.level:
            return
        self.level, live = level, self.scheduler.live
        if self.state is not None:
            nobody = rows.NOBODY
            asked = [
                live[slot].request if slot in live else nobody
                for slot in range(self.scheduler.num_slots)
            ]
            self.state = self.state._replace(sampling=self.stack(asked, level))

    def _shrink(self) -> None:
        """Make the batch smaller if it has been too large for long, and will be."""
        scheduler = self.scheduler
        to_come = max(one.request.limit - one.length for one in scheduler.live.values())
        size = scheduler.smaller()
        if len(scheduler) > size or to_come < self.plan.worth:
            self._calm = 0
        elif self._calm >= self.plan.patience:
            self._resize(size)

    def _resize(self, size: int) -> None:
        kept = self.scheduler.resize(size)
        slots = np.zeros(size, np.int32)
        slots[: len(kept)] = kept
        self.state, self._calm = self.driver.select(self.state, slots, len(kept)), 0
