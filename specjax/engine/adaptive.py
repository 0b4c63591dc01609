"""Adaptive K of a batch: engines for each K, and a policy that learns from the loop's rounds."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from specjax.core.policies import AdaptivePolicy, Seen, count_positions
from specjax.core.types import Engine, StepInfo

MOST_ROUNDS = 8  # that one K runs for, before the policy is asked again


class Dispatched(NamedTuple):
    """A program of decode rounds that has been started."""

    running: int
    depth: int
    started: float
    timed: bool  # whether its end will tell how long it took


class Adaptive:
    """Chooses K for each program of decode rounds. Used by one loop at a time.

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
        self._seen: set[Any] = set()  # programs that have run before, and need not be compiled
        self._ended, self._follows = 0.0, False

    def choose(self, running: int) -> Engine:
        """Return the engine of the next rounds, for this number of running requests."""
        depth, self._state = self._policy.choose(self._state, running)
        return self.engines[depth]

    def start(self, running: int, engine: Engine, num_slots: int) -> Dispatched:
        """Note that a program is dispatched now.

        How long it takes is known if it follows another one of decode rounds, and has run before.
        """
        program = engine, num_slots
        timed = self._follows and program in self._seen
        self._seen.add(program)
        self._follows = True
        return Dispatched(running, engine.drafter.depth, self._clock(), timed)

    def interrupt(self) -> None:
        """Note that a program of another kind is dispatched now."""
        self._follows = False

    def end(self, program: Dispatched, infos: StepInfo, rounds: int) -> None:
        """Learn from the results of a program, which have just come.

        One that was started ahead finds no row running if all have ended: it shows nothing.
        """
        now = self._clock()
        seconds = now - max(program.started, self._ended) if program.timed else None
        self._ended = now
        if not rounds:
            return
        ran = np.asarray(infos.num_emitted)[:rounds] > 0
        accepted = np.asarray(infos.num_accepted)[:rounds][ran]
        counts = count_positions(accepted, program.depth)
        seen = Seen(program.running, program.depth, rounds, *counts, seconds)
        self._state = self._policy.learn(self._state, seen)
