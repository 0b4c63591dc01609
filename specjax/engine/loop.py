"""Continuous batching: prefill prompts and run decode rounds; requests join and leave slots.

A prompt is prefilled apart from the rows that are decoding, in chunks that depend on its own
length only; so a request's numbers never depend on the other requests of the batch. Joining and
leaving compile nothing: every program belongs to a shape of the ``Plan``.

A service works one step ahead (asynchronous scheduling): it dispatches the next program to the
device before it reads the results of the last one, so the host's work overlaps with the device's.
It then notices that a request has ended one round late; in that round its row is idle. While a
request with a grammar runs, results are read first: the masks of a round depend on them.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specjax.core.types import Engine, Params, State
from specjax.drafters.fallback import with_first
from specjax.engine.adaptive import Adaptive
from specjax.engine.batch import Batch
from specjax.engine.driver import XLA, Driver
from specjax.engine.plan import Plan
from specjax.engine.prefill import Prefill, is_scored
from specjax.engine.prefix_cache import PrefixCache
from specjax.engine.programs import Programs
from specjax.engine.request_state import RequestState
from specjax.engine.scheduler import Scheduler

Watch = Callable[[RequestState], int | None]  # number of output tokens to keep; None: go on
Learn = Callable[[RequestState | None], Any]  # takes a request's new tokens; returns draft params
Collect = Callable[[], list[RequestState]]  # waits for a program; returns requests with new tokens
Export = Callable[[RequestState, Any], Mapping[str, str]]  # saves a finished row's drafter state


class Loop:
    """Alternates between prefill and decode rounds, one program per ``step``.

    Args:
        plan: the shapes of all programs; it sets ``engine.window`` and the numbers of log
            probabilities.
        schedule: the engine for each number of running requests: entry i while i + 1 run, the
            last one also when more do. All of them share ``engine``'s state.
        adaptive: chooses the engine for the next rounds, instead of the schedule.
        watch: called with each request that has new tokens; may stop it.
        export: called with each request that has finished, and its row of the drafter's state.
        learn: called with each request that has new tokens, and with None for the drafter's
            present parameters before each program, since another loop may have changed them.
        alternate: between two decode rounds prefill at most as many positions as the largest
            chunk has, which bounds the gap between two tokens of a running request, and work one
            step ahead if the driver can. Otherwise prompts with a slot are prefilled first.
        scheduler: the queue to serve.
        driver: runs the programs; ``params`` lie on its device.
        prefixes: keeps what was read of prompts; None: nothing is kept.
    """

    def __init__(
        self,
        engine: Engine,
        params: Params,
        plan: Plan,
        *,
        schedule: Sequence[Engine] = (),
        adaptive: Adaptive | None = None,
        watch: Watch | None = None,
        learn: Learn | None = None,
        export: Export | None = None,
        alternate: bool = False,
        scheduler: Scheduler | None = None,
        driver: Driver = XLA,
        prefixes: PrefixCache | None = None,
    ):
        engines = tuple(schedule) or (engine,)
        self.programs = Programs(engine, params, plan, engines, driver, adaptive)
        self._adaptive = adaptive
        if adaptive is not None:
            adaptive.interrupt()
        self.scheduler = Scheduler(plan.sizes) if scheduler is None else scheduler
        self.prefill = Prefill(self.programs, prefixes)
        self.batch = Batch(self.programs, self.scheduler)
        self._watch, self._learn, self._export = watch, learn, export
        self._alternate = alternate
        self._num_prefilled = 0  # prompt positions prefilled since the last decode round
        self._ahead = alternate and driver.asynchronous
        self._collect: Collect = list  # the results of the last program, if not collected yet

    def step(self, max_rounds: int | None = None) -> list[RequestState]:
        """Prefill one chunk or run decode rounds; return the requests that have new tokens."""
        grown: list[RequestState] = []
        if self.batch.masked:  # a grammar's next masks need the tokens
            grown, self._collect = self._collect(), list
            if not len(self.scheduler):
                return grown
        collect = self._dispatch(max_rounds)
        if self._ahead:
            collect, self._collect = self._collect, collect
        grown, prefilling = grown + collect(), list(self.scheduler.prefilling)
        if prefilling and self.prefill.num_prefilled >= len(prefilling[0].request.prompt):
            self._admit(prefilling)
        return grown

    def use(self, plan: Plan) -> None:
        """Take other shapes from the next program on; the plan has the same capacity."""
        self.programs.plan = plan
        self.scheduler.use(plan.sizes)

    def next(self) -> list[RequestState]:
        """Return the requests to prefill now."""
        return self.scheduler.next(self._together)

    def abort(self, request_state: RequestState) -> None:
        """Stop a request, waiting or running; its slot is free at once."""
        if request_state.finish_reason is None:
            request_state.finish_reason = "abort"
            self._publish(request_state)

    def _dispatch(self, max_rounds: int | None) -> Collect:
        """Start the next program; return the function that waits for its results."""
        prefilling = self.next()
        chunk = self.prefill.next_chunk(prefilling) if prefilling else 0
        prefilled = self._num_prefilled + chunk * len(prefilling)
        most = self.programs.plan.chunks[-1]
        if not prefilling or (self._alternate and self.scheduler.decoding and prefilled > most):
            self._num_prefilled = 0
            return self._decode(max_rounds)
        self._num_prefilled = prefilled
        return self._prefill_chunk(chunk)

    def _together(self, waiting: list[RequestState]) -> int:
        """Return how many of the waiting requests to prefill in one pass."""
        plain = itertools.takewhile(lambda one: not is_scored(one), waiting)
        lengths = [len(one.request.prompt) for one in plain]
        return self.programs.plan.group_size(lengths) if self.programs.driver.asynchronous else 1

    def _prefill_chunk(self, chunk: int) -> Collect:
        """Prefill the next chunk of prompts; the last chunk emits the first token."""
        if self._adaptive is not None:
            self._adaptive.interrupt()
        start = self.prefill.num_prefilled
        info, prompt = self.prefill.run(self._current_params(), chunk, self.scheduler.prefilling)
        group = self.prefill.group
        longest = max(len(one.request.prompt) for one in group)

        def collect() -> list[RequestState]:
            left = [(row, one) for row, one in enumerate(group) if one.finish_reason is None]
            if is_scored(group[0]) and left:  # then there is one request only
                ids, values, ranks = jax.device_get(prompt)
                real = min(chunk, longest - 1 - start)
                scored = list(zip(ids[0], values[0], ranks[0], strict=True))
                group[0].prompt_logprobs += scored[:real]
            if start + chunk < longest:
                return []
            found = jax.tree.map(lambda x: x[None], jax.device_get(info))
            for row, one in left:
                one.extend(found, row, 1)
                self._publish(one)
            return [one for _, one in left]

        return collect

    def _decode(self, max_rounds: int | None) -> Collect:
        """Run decode rounds for all running rows."""
        begun = self._ahead or self.batch.masked  # one more round before results are read
        num_unknown = self.programs.engine.drafter.depth + 1 if begun else 0
        params = self._current_params()
        window, results, started = self.batch.generate(params, max_rounds, num_unknown)
        decoding, plan = dict(self.scheduler.decoding), self.programs.plan

        def collect() -> list[RequestState]:
            infos, rounds = jax.device_get(results)
            left = {slot: one for slot, one in decoding.items() if one.finish_reason is None}
            if rounds == 0 and left:
                raise RuntimeError(f"no progress in a window of {window}: {plan.capacity=}")
            self.batch.num_oversized += int(rounds)
            if self._adaptive is not None and started is not None:
                self._adaptive.end(started, infos, int(rounds))
            for slot, request_state in left.items():
                request_state.extend(infos, slot, int(rounds))
                self._publish(request_state)
            return list(left.values())

        return collect

    def _current_params(self) -> Params:
        """Return the parameters, the drafter's as ``learn`` has them now."""
        if self._learn is None:
            return self.programs.params
        params = self.programs.params
        return params._replace(draft=with_first(params.draft, self._learn(None)))

    def _publish(self, request_state: RequestState) -> None:
        """Pass a request with new tokens to the callbacks; free its slot if it has ended."""
        keep = self._watch(request_state) if self._watch else None
        if keep is not None:
            request_state.cut(keep)
            request_state.finish_reason = "stop"
        if self._export and request_state.finish_reason not in (None, "abort"):
            state, slot = self._where(request_state)
            row = jax.tree.map(lambda leaf: leaf[slot], state.drafter)
            request_state.kv_transfer_params = self._export(request_state, row)
        if self._learn is not None:
            self._learn(request_state)
        if request_state.finish_reason is not None:
            self._release(request_state)

    def _where(self, request_state: RequestState) -> tuple[State, int]:
        """Return the state that holds a request, and its slot there."""
        if request_state in self.scheduler.prefilling:
            state, slot = self.prefill.state, self.prefill.group.index(request_state)
        else:
            state, decoding = self.batch.state, self.scheduler.decoding
            slot = next(slot for slot, one in decoding.items() if one is request_state)
        assert state is not None
        return state, slot

    def _release(self, request_state: RequestState) -> None:
        """Free the slot of a request that has ended."""
        slot = self.scheduler.remove(request_state)
        if not self.scheduler.prefilling:
            self.prefill.clear()
        if slot is not None:
            self.batch.release(slot)

    def _admit(self, prefilling: list[RequestState]) -> None:
        """Move the requests whose prompts have been prefilled into slots."""
        found, group = self.prefill.state, self.prefill.group
        assert found is not None
        found = found._replace(sampling=found.sampling._replace(mask=None))
        self.prefill.clear()
        for one in prefilling:
            row = found
            if len(found.text.reason) > 1:
                where = np.full(1, group.index(one), np.int32)
                row = self.programs.driver.select(found, where, 1)
            self.batch.add(one, row)
        if len(found.text.reason) == 1:  # a batch of one overwrites it
            self.prefill.keep(group[0], found, donated=self.scheduler.num_slots == 1)
