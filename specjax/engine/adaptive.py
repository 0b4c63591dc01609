"""Adaptive K of a batch: engines for each K, and a policy that learns from the loop's rounds."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from specjax.core.policies import AdaptivePolicy, Seen, count_positions
from specjax.core.types import Engine, StepInfo


class Dispatched(NamedTuple):
    """A program of decode rounds that has been started."""

    running: int
    depth: int
    started: float
    timed: bool  # whether its end will tell how long it took


class Ended(NamedTuple):
    """A program whose results have come."""

    program: Dispatched
    infos: StepInfo
    rounds: int
    seconds: float


class Adaptive:
    """Chooses K for the next decode rounds. Used by one loop at a time.

    What rounds have shown is kept until the policy is asked again, and then learned at once.

    Args:
        policy: see ``core.policies``.
        engines: by K, one for each candidate; they share a state.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        policy: AdaptivePolicy,
        engines: Mapping[int, Engine],
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.engines = engines
        self._policy, self._clock = policy, clock
        self._state = policy.init()
        self._depth, self.rounds_left = 0, 0
        self._results: list[Ended] = []  # of one K and number of requests, not learned yet
        self._seen: set[Any] = set()  # programs that have run before, and need not be compiled
        self._ended, self._follows = 0.0, False

    def choose(self, running: int) -> Engine:
        """Return the engine of the next rounds, for this number of running requests.

        It may run for ``rounds_left`` rounds.
        """
        if self.rounds_left <= 0:
            self._learn()
            choice, self._state = self._policy.choose(self._state, running)
            self._depth, self.rounds_left = choice
        return self.engines[self._depth]

    def start(self, running: int, engine: Engine, num_slots: int, most: int) -> Dispatched:
        """Note that a program of at most ``most`` rounds is dispatched now.

        How long it takes is known if it follows another one of decode rounds, and has run before.
        """
        self.rounds_left -= most
        program = engine, num_slots
        timed = self._follows and program in self._seen
        self._seen.add(program)
        self._follows = True
        return Dispatched(running, engine.drafter.depth, self._clock(), timed)

    def interrupt(self) -> None:
        """Note that a program of another kind is dispatched now."""
        self._follows = False

    def end(self, program: Dispatched, infos: StepInfo, rounds: int) -> None:
        """Take the results of a program, which have just come.

        One that was started ahead finds no row running if all have ended: it shows nothing.
        """
        now = self._clock()
        seconds = now - max(program.started, self._ended)
        self._ended = now
        if not rounds:
            return
        if self._results and kind(self._results[0].program) != kind(program):
            self._learn()
        self._results.append(Ended(program, infos, rounds, seconds))

    def _learn(self) -> None:
        """Let the policy learn what has been kept."""
        results, self._results = self._results, []
        if not results:
            return
        accepted = []
        for _, infos, rounds, _ in results:
            ran = np.asarray(infos.num_emitted)[:rounds] > 0
            accepted.append(np.asarray(infos.num_accepted)[:rounds][ran])
        program = results[0].program
        rounds, seconds = sum(one.rounds for one in results), None
        if program.timed:  # the median: a pause of the machine is no round's time
            seconds = rounds * statistics.median(one.seconds / one.rounds for one in results)
        counts = count_positions(np.concatenate(accepted), program.depth)
        seen = Seen(program.running, program.depth, rounds, *counts, seconds)
        self._state = self._policy.learn(self._state, seen)


def kind(program: Dispatched) -> tuple[int, int, bool]:
    """Return what programs have in common that are learned from together."""
    return program.running, program.depth, program.timed
