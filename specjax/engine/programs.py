"""``Programs``: the compiled programs of a loop, each for a shape of the plan."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from specjax.core.sampling import Sampling
from specjax.core.types import Engine, Params, State, Text
from specjax.engine import rows
from specjax.engine.adaptive import Adaptive
from specjax.engine.driver import Driver
from specjax.engine.plan import Plan, ProgramTier
from specjax.engine.rows import Request

idle = jax.jit(rows.idle, static_argnums=(0, 1, 2))


@dataclass(eq=False)
class Programs:
    """What a loop's programs have in common: engine, weights, shapes and device.

    Args:
        engine: its window and numbers of log probabilities are set by the plan.
        params: on the driver's device.
        schedule: the engine for each number of running requests.
        adaptive: chooses the engine instead, by what past rounds have shown.
    """

    engine: Engine
    params: Params
    plan: Plan
    schedule: Sequence[Engine]
    driver: Driver
    adaptive: Adaptive | None = None

    @property
    def vocab_size(self) -> int:
        """Return V."""
        return self.engine.target.vocab_size

    def new_state(self, laid_out: tuple[Text, Sampling, jax.Array], window: int) -> State:
        """Return the state of new rows, allocated on the device for a window."""
        engine = self.engine._replace(window=window)
        return self.driver.init_state(engine, self.params, *laid_out)

    def idle_state(self, num_slots: int, tier: ProgramTier, window: int) -> State:
        """Return the state of a batch of idle slots."""
        return self.new_state(idle(num_slots, tier.layout, self.plan.capacity), window)

    def stack_sampling(self, requests: Sequence[Request], tier: ProgramTier) -> Sampling:
        """Return the sampling parameters of requests as device arrays, one row for each."""
        each = [rows.sampling_row(request, tier.layout) for request in requests]
        stacked = jax.tree.map(lambda *leaves: np.concatenate(leaves), *each)
        return self.driver.place(self.params, stacked)

    def prefill_engine(self, window: int, scored: bool) -> Engine:
        """Return the prefill engine for this window, with prompt log probabilities or without."""
        return self.engine._replace(
            window=window,
            num_logprobs=self.plan.prefill_tier.num_logprobs,
            num_prompt_logprobs=self.plan.num_prompt_logprobs if scored else None,
        )

    def decode_engine(self, num_running: int, window: int, tier: ProgramTier) -> Engine:
        """Return the engine of the next decode rounds, for so many requests, window and tier."""
        if self.adaptive is None:
            chosen = self.scheduled(num_running)
        else:
            chosen = self.adaptive.choose(num_running)
        return chosen._replace(window=window, num_logprobs=tier.num_logprobs)

    def decode_engines(self, counts: Iterable[int], window: int, tier: ProgramTier) -> list[Engine]:
        """Return all decode engines that these numbers of running requests may call for."""
        found = map(self.scheduled, counts)
        if self.adaptive is not None:
            found = self.adaptive.engines.values()
        shape = {"window": window, "num_logprobs": tier.num_logprobs}
        return [one._replace(**shape) for one in dict.fromkeys(found)]

    def scheduled(self, num_running: int) -> Engine:
        """Return the engine whose K the schedule gives for this number of running requests."""
        return self.schedule[min(num_running, len(self.schedule)) - 1]
