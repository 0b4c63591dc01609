"""Dynamic K: the draft length as a table over the number of running requests."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from specjax.theory.arrays import Real, require


class Policy(NamedTuple):
    """K by the number of running requests, and the distribution of the drafter's own length."""

    schedule: Int[Any, "S1"]  # K when 0 .. S requests run
    len_pmf: Float[Any, "K1"]  # distribution of the drafter's own length, 0 .. max K; cut at K


def fixed_k(num_speculative_tokens: int, num_slots: int, len_pmf: Real | None = None) -> Policy:
    """Return the policy of a fixed K; ``len_pmf`` is the distribution of shorter drafts.

    Like the other rules, raises ValueError for K < 0 or a ``len_pmf`` that is no distribution of 0
    .. K.
    """
    return as_policy(
        np.full(num_slots + 1, num_speculative_tokens), num_speculative_tokens, len_pmf
    )


def off_above(
    load: int, num_speculative_tokens: int, num_slots: int, len_pmf: Real | None = None
) -> Policy:
    """Return the policy of K tokens while at most ``load`` requests run, else no draft."""
    running = np.arange(num_slots + 1)
    return as_policy(
        np.where(running <= load, num_speculative_tokens, 0), num_speculative_tokens, len_pmf
    )


def by_schedule(ranges: list[list[int]], num_slots: int, len_pmf: Real | None = None) -> Policy:
    """Return the policy of ``theory.num_speculative_tokens_per_batch_size``, best for goodput."""
    schedule = np.zeros(num_slots + 1, int)
    for first, last, k in ranges:
        schedule[first : last + 1] = k
    schedule[ranges[-1][1] + 1 :] = ranges[-1][2]
    return as_policy(schedule, int(schedule.max()), len_pmf)


def as_policy(schedule: Real, depth: int, len_pmf: Real | None) -> Policy:
    """Return a validated policy."""
    require("num_speculative_tokens", depth, 0)
    pmf = np.eye(depth + 1)[-1] if len_pmf is None else np.asarray(len_pmf, np.float64)
    if pmf.shape[-1] != depth + 1 or abs(pmf.sum() - 1) > 1e-9 or (pmf < 0).any():
        raise ValueError(f"len_pmf must hold P(length = 0 .. {depth}) and sum to 1, got {pmf}")
    return Policy(np.asarray(schedule, np.int32), pmf)
