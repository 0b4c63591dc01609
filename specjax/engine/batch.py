"""``Batch``: the rows that are decoding; its slots grow and shrink with the requests."""

from typing import Any

import numpy as np

from specjax.core.cache import capacity
from specjax.core.types import Params, State
from specjax.engine import masked_round, rows
from specjax.engine.adaptive import Dispatched
from specjax.engine.plan import ProgramTier
from specjax.engine.programs import Programs
from specjax.engine.request_state import RequestState
from specjax.engine.scheduler import Scheduler


class Batch:
    """The state of the running requests, one row for each slot of the scheduler.

    Attributes:
        tier: of the present program: the leanest that supports all running requests.
        num_oversized: rounds for which the batch has been larger than its requests need.
    """

    def __init__(self, programs: Programs, scheduler: Scheduler):
        self._programs, self._scheduler = programs, scheduler
        self.state: State | None = None
        self._begun: masked_round.Begun | None = None
        self.tier = programs.plan.tiers[0]
        self.num_oversized = 0

    @property
    def masked(self) -> bool:
        """Return whether a running request has a grammar."""
        return any(one.grammar is not None for one in self._scheduler.decoding.values())

    def generate(
        self, params: Params, max_rounds: int | None, num_unknown: int
    ) -> tuple[int, list[Any], Dispatched | None]:
        """Start decode rounds; return the window, and [infos, number of rounds] on the device.

        With adaptive K also what its policy will learn from.

        Args:
            num_unknown: tokens a row may have beyond those the host has read.
        """
        self._shrink()
        programs, plan = self._programs, self._programs.plan
        num_running, adaptive = len(self._scheduler.decoding), programs.adaptive
        masked = self.masked
        counted = self._count(num_running) if adaptive is None else num_running
        engine = programs.decode_engine(counted, self._window(num_unknown), self.tier)
        most = 1 if masked else min(max_rounds or plan.history, plan.history)
        started = None
        if adaptive is not None:
            most = min(most, adaptive.rounds_left)
            started = adaptive.start(num_running, engine, self._scheduler.num_slots, most)
        min_running = 1 if most == 1 else self._min_running()  # one round runs in any case
        assert self.state is not None
        state = programs.driver.fit(self.state, engine.window)
        begun, self._begun = self._begun, None
        if masked:
            decoding = self._scheduler.decoding
            self.state, infos, self._begun = masked_round.run(
                programs, engine, params, state, decoding, begun
            )
            return engine.window, [infos, 1], started
        self.state, *results = programs.driver.generate(
            engine, params, state, most, min_running, plan.history
        )
        return engine.window, results, started

    def add(self, request_state: RequestState, row: State) -> None:
        """Move a prefilled request's row into a slot; the batch grows if none is free."""
        scheduler, plan, driver = self._scheduler, self._programs.plan, self._programs.driver
        decoding = [one.request for one in scheduler.decoding.values()]
        self._relayout_sampling(plan.tier([request_state.request, *decoding]))
        if self.tier != plan.prefill_tier:
            sampling = self._programs.stack_sampling([request_state.request], self.tier)
            row = row._replace(sampling=sampling)
        if len(scheduler.decoding) == scheduler.num_slots:
            self._resize(scheduler.larger())
        slot = scheduler.place(request_state)
        if scheduler.num_slots == 1:
            self.state = row  # a batch of one: copied into another, a request took 1 ms longer
            return
        if self.state is None:
            slots = scheduler.num_slots
            self.state = self._programs.idle_state(slots, self.tier, capacity(row))
        wider = max(capacity(self.state), capacity(row))
        self.state, row = driver.fit(self.state, wider), driver.fit(row, wider)
        self.state = driver.insert_row(self.state, slot, row)

    def release(self, slot: int) -> None:
        """Free the slot of a request that the scheduler has removed."""
        if self.state is None:
            return
        if self._scheduler.num_slots == 1:
            self.state = self._begun = None  # the next request's own state takes its place
            return
        self.state = self._programs.driver.release_slot(self.state, slot)
        decoding = self._scheduler.decoding.values()
        self._relayout_sampling(self._programs.plan.tier([one.request for one in decoding]))

    def _count(self, num_running: int) -> int:
        """Return the number of running requests by which the schedule chooses K.

        While a batch has more slots than its requests need, they count as one more than fit the
        next smaller size: so few engines are compiled for each size.
        """
        return max(num_running, self._scheduler.smaller() + 1)

    def _window(self, num_unknown: int) -> int:
        """Return the window that the running rows need."""
        room, decoding = self._programs.engine.drafter.room, self._scheduler.decoding.values()
        now, ever = max(one.length for one in decoding), max(one.request.limit for one in decoding)
        return self._programs.plan.window(min(now + num_unknown, ever) + room, ever + room)

    def _min_running(self) -> int:
        """Return the number of running rows below which the compiled loop must return.

        Fewer would free a slot for a waiting request, fit a smaller batch, or draft another K.
        """
        running, smaller = len(self._scheduler.decoding), self._scheduler.smaller()
        if self._scheduler.waiting:
            return running
        scheduled = self._programs.scheduled
        found, least = running, smaller + 1 if running > smaller else 1
        now = scheduled(self._count(running))
        while found > least and scheduled(self._count(found - 1)) == now:
            found -= 1
        return found

    def _relayout_sampling(self, tier: ProgramTier) -> None:
        """Rebuild the batch's sampling arrays if the set of options in use has changed."""
        if tier == self.tier:
            return
        self.tier, decoding = tier, self._scheduler.decoding
        if self.state is not None:
            requests = [
                decoding[slot].request if slot in decoding else rows.IDLE_REQUEST
                for slot in range(self._scheduler.num_slots)
            ]
            self.state = self.state._replace(sampling=self._programs.stack_sampling(requests, tier))

    def _shrink(self) -> None:
        """Shrink the batch to the next smaller size, if that has sufficed and will for long."""
        scheduler, plan = self._scheduler, self._programs.plan
        to_come = max(one.request.limit - one.length for one in scheduler.decoding.values())
        size = scheduler.smaller()
        if len(scheduler) > size or to_come < plan.min_tokens_to_shrink:
            self.num_oversized = 0
        elif self.num_oversized >= plan.patience:
            self._resize(size)

    def _resize(self, size: int) -> None:
        """Copy the running rows into a batch of another number of slots."""
        kept = self._scheduler.resize(size)
        slots = np.zeros(size, np.int32)
        slots[: len(kept)] = kept
        assert self.state is not None
        self.state = self._programs.driver.select(self.state, slots, len(kept))
        self.num_oversized = 0
