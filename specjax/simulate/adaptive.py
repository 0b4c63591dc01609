"""Adaptive K under a load that changes: a policy's throughput beside that of each fixed K."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator, default_rng

from specjax.core.policies import AdaptivePolicy, Seen, count_positions
from specjax.simulate.serving import Costs, seconds
from specjax.theory.arrays import require, require_probs


class Phase(NamedTuple):
    """A stretch of time with one load."""

    running: int  # requests
    alpha: float  # the chance that a draft token is accepted
    seconds: float


class Throughput(NamedTuple):
    """Tokens per second in each phase [P]."""

    policy: np.ndarray
    fixed: np.ndarray  # [P, C] of each candidate, used all the time
    depth: np.ndarray  # the policy's mean K

    @property
    def against_best(self) -> np.ndarray:
        """The policy's tokens per second as a share of the best fixed K's, by phase."""
        return self.policy / self.fixed.max(axis=1)


def under_load(
    policy: AdaptivePolicy, phases: Sequence[Phase], costs: Costs, *, noise: float = 0.0,
    seed: int = 0,
) -> Throughput:  # fmt: skip
    """Return the throughput of a policy over phases of load, simulated round by round.

    Args:
        policy: see ``core.policies``; it goes through all phases once.
        phases: what happens.
        costs: of a round.
        noise: standard deviation of the logarithm of a measured time.
        seed: of the acceptances and the noise.

    Raises:
        ValueError: a phase without requests or time, or alpha outside [0, 1].

    >>> from specjax.core.policies import by_acceptance
    >>> found = under_load(by_acceptance([2]), [Phase(1, 1.0, 1.0)], Costs(t0=0.01))
    >>> found.policy.round().tolist(), found.fixed.round().tolist()
    ([300.0], [[300.0]])
    """
    rng, state = default_rng(seed), policy.init()
    found, depths = [], []
    for phase in phases:
        require("running", phase.running, 1)
        require("seconds", phase.seconds, 1e-9)
        require_probs(alpha=phase.alpha)
        time, tokens, drafted = 0.0, 0, []
        times = {k: round_time(costs, phase.running, k) for k in policy.candidate_steps}
        while time < phase.seconds:
            (k, rounds), state = policy.choose(state, phase.running)
            accepted = draw_accepted(rng, phase, k, rounds)
            spent = rounds * times[k]
            reached, kept = count_positions(accepted, k)
            shown = times[k] * float(np.exp(noise * rng.standard_normal(rounds)).sum())
            state = policy.learn(state, Seen(phase.running, k, rounds, reached, kept, shown))
            time, tokens = time + spent, tokens + int(accepted.sum()) + rounds * phase.running
            drafted += [k] * rounds
        found.append(tokens / time)
        depths.append(float(np.mean(drafted)))
    fixed = [
        [
            phase.running * sum(phase.alpha**i for i in range(k + 1))
            / round_time(costs, phase.running, k)
            for k in policy.candidate_steps
        ]
        for phase in phases
    ]  # fmt: skip
    return Throughput(np.array(found), np.array(fixed), np.array(depths))


def draw_accepted(rng: Generator, phase: Phase, k: int, rounds: int) -> np.ndarray:
    """Return how many draft tokens are accepted, for each round of each request."""
    right = rng.random((rounds * phase.running, k)) < phase.alpha
    return np.cumprod(right, axis=1).sum(axis=1)


def round_time(costs: Costs, running: int, k: int) -> float:
    """Return the time of a round without prompts and without what its context costs."""
    return float(seconds(costs, running, running * k, k, 0, 0))
