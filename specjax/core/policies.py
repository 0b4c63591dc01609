"""Adaptive K: how many tokens to draft in the next round, by what past rounds have shown.

A policy is three pure functions: ``init`` returns what is known at the start, ``choose`` returns K
for a number of running requests and how many rounds to keep it, ``learn`` takes in what those
rounds have shown. So the policy that serves is the one that is simulated. It is asked every few
rounds only: asked in each, it cost a tenth of the bundled target's rounds at batch 1, where all
cores were busy. With ``walk`` no policy can change the text; with the ratio rules the text keeps
its distribution, since K depends on earlier rounds alone.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Choice(NamedTuple):
    """What a policy chooses."""

    depth: int  # K
    rounds: int  # to draft K tokens in, before the policy is asked again


class Seen(NamedTuple):
    """What some rounds with one K and one number of running requests have shown."""

    running: int  # requests that ran
    depth: int  # K
    rounds: int
    reached: Int[np.ndarray, "K"]  # rounds of requests that accepted all tokens before i
    accepted: Int[np.ndarray, "K"]  # those that accepted the one at i too
    seconds: float | None  # of all rounds; None: not known


class AdaptivePolicy(NamedTuple):
    """A policy over ``candidate_steps``; its states are NamedTuples that nothing changes."""

    init: Callable[[], Any]
    choose: Callable[[Any, int], tuple[Choice, Any]]  # (state, running requests) -> choice, state
    learn: Callable[[Any, Seen], Any]
    candidate_steps: tuple[int, ...]  # the values that K may have, rising


def count_positions(
    accepted: Sequence[int] | Int[np.ndarray, "R"], depth: int
) -> tuple[Int[np.ndarray, "K"], Int[np.ndarray, "K"]]:
    """Return (reached, accepted) by position, from the accepted tokens of some rounds of K.

    A token that a drafter did not find counts as one that was rejected.

    >>> reached, accepted = count_positions([1, 3, 1], depth=3)
    >>> reached.tolist(), accepted.tolist()
    ([3, 3, 1], [3, 1, 1])
    """
    position, kept = np.arange(depth)[None], np.asarray(accepted, int).reshape(-1, 1)
    return (kept >= position).sum(axis=0), (kept > position).sum(axis=0)


class Average(NamedTuple):
    """What ``by_acceptance`` knows."""

    accepted: float  # moving average of a draft's accepted tokens
    index: int  # of the present K
    batches: int


def by_acceptance(
    candidate_steps: Sequence[int],
    *,
    ema_alpha: float = 0.2,
    warmup_batches: int = 10,
    update_interval: int = 5,
    up_hysteresis: float = 0.0,
    down_hysteresis: float = -0.25,
) -> AdaptivePolicy:
    """Return SGLang's policy "ema": K follows the number of accepted tokens.

    K rises to the next candidate while the average is above K - 0.5 + ``up_hysteresis``, and falls
    to the one before while it is at most that one - 0.5 + ``down_hysteresis`` (before 0: 0.5). From
    K = 0 it tries the next candidate after ``update_interval`` rounds. Source: SGLang,
    ``adaptive_spec_params.py``.

    Args:
        candidate_steps: the values that K may have; it begins with the largest.
        ema_alpha: the weight of the last round.
        warmup_batches: rounds before K changes.
        update_interval: rounds between two changes, and for which a choice holds.
        up_hysteresis: added to the bar for a larger K.
        down_hysteresis: added to the bar for a smaller one.
    """
    steps = check_steps(candidate_steps)
    require("ema_alpha", ema_alpha, 1e-6, 1.0)
    require("warmup_batches", warmup_batches, 0)
    require("update_interval", update_interval, 1)

    def learn(state: Average, seen: Seen) -> Average:
        average, drafts = state.accepted, seen.reached[0] if len(seen.reached) else 0
        if drafts:
            kept = 1 - (1 - ema_alpha) ** seen.rounds
            average += kept * (float(seen.accepted.sum()) / float(drafts) - average)
        batches = state.batches + seen.rounds
        state = Average(average, state.index, batches)
        before = max(state.batches - seen.rounds - warmup_batches, 0)
        due = (batches - warmup_batches) // update_interval > before // update_interval
        return state._replace(index=next_index(state)) if due else state

    def next_index(state: Average) -> int:
        index = state.index
        if steps[index] == 0:
            return min(index + 1, len(steps) - 1)
        while index > 0:
            least = steps[index - 1] or 1
            if state.accepted > least - 0.5 + down_hysteresis:
                break
            index -= 1
        if index < state.index:
            return index
        while index < len(steps) - 1 and state.accepted > steps[index] - 0.5 + up_hysteresis:
            index += 1
        return index

    def choose(state: Average, running: int) -> tuple[Choice, Average]:
        return Choice(steps[state.index], update_interval), state

    start = Average(float(max(steps[-1] - 1, 0)), len(steps) - 1, 0)
    return AdaptivePolicy(lambda: start, choose, learn, steps)


class Rates(NamedTuple):
    """What ``by_throughput`` knows; C candidates, G numbers of slots."""

    reached: Float[np.ndarray, "K"]  # by position, the older the less they count
    accepted: Float[np.ndarray, "K"]
    seconds: Float[np.ndarray, "G C"]  # a round's time with 1, 2, 4, ... slots; NaN: not measured
    timed: Int[np.ndarray, "G C"]  # rounds that were measured
    since: Int[np.ndarray, "C"]  # rounds since a candidate was chosen
    index: int  # of the present K


def by_throughput(
    candidate_steps: Sequence[int],
    max_num_seqs: int,
    *,
    hysteresis: float = 0.01,
    probe_budget: float = 0.01,
    probe_rounds: int = 4,
    update_interval: int = 8,
    least_interval: int = 50,
    half_life: float = 100.0,
    ema_alpha: float = 0.01,
) -> AdaptivePolicy:
    """Return the policy of the K with the most tokens per second, as measured while serving.

    Tokens per round follow from the acceptance by position, which all batch sizes share; a round's
    time is measured for each K and each power of two that holds the running requests, since a batch
    has as many slots: by the number of requests each time had few measurements, and their noise
    kept a wrong K longer. So K falls, to 0 if that is among the candidates, when load makes
    verification dear or the drafts become wrong. Another K replaces the present one when it gains
    more than ``hysteresis``. Candidates that are not in use are tried now and then, so often that
    the time it loses is a share of ``probe_budget``, and at once where no batch of that size has
    run with them. (SGLang has a strategy of that name, by times that it profiles at start;
    TurboSpec, arXiv:2406.14066, maximises the same goodput.)

    Args:
        candidate_steps: the values that K may have; it begins with the largest.
        max_num_seqs: the most running requests.
        hysteresis: the least gain for which K changes.
        probe_budget: the share of time that trials may lose.
        probe_rounds: rounds of a trial.
        update_interval: rounds for which any other choice holds.
        least_interval: rounds between two trials of a candidate, at least.
        half_life: drafts after which an observed acceptance counts half.
        ema_alpha: the weight of the last round in a time, once many have been measured.
    """
    steps = check_steps(candidate_steps)
    depth, shape = steps[-1], (group(max_num_seqs) + 1, len(steps))
    for name, value in (("hysteresis", hysteresis), ("probe_budget", probe_budget)):
        require(name, value, 0.0, 1.0)

    def init() -> Rates:
        none, since = np.zeros(depth), np.zeros(len(steps), int)
        unknown, timed = np.full(shape, np.nan), np.zeros(shape, int)
        return Rates(none, none, unknown, timed, since, len(steps) - 1)

    def choose(state: Rates, running: int) -> tuple[Choice, Rates]:
        times = state.seconds[group(min(running, max_num_seqs))]
        for index in reversed(range(len(steps))):
            if np.isnan(times[index]):
                return spend(state, index, probe_rounds)
        rates = tokens_per_round(state)[list(steps)] / times
        best, index = int(rates.argmax()), state.index
        if rates[best] > rates[index] * (1 + hysteresis):
            index = best
        state = state._replace(index=index)
        lost = probe_rounds * times / times[index] * (1 - rates / rates[index])
        share = probe_budget / max(len(steps) - 1, 1)
        interval = np.maximum(least_interval, lost / max(share, 1e-9))
        overdue = state.since / interval
        overdue[index] = 0
        if overdue.max() > 1 and probe_budget > 0:
            return spend(state, int(overdue.argmax()), probe_rounds)
        return spend(state, index, update_interval)

    def spend(state: Rates, index: int, rounds: int) -> tuple[Choice, Rates]:
        since = state.since + rounds
        since[index] = 0
        return Choice(steps[index], rounds), state._replace(since=since)

    def learn(state: Rates, seen: Seen) -> Rates:
        drafts = float(seen.reached[0]) if len(seen.reached) else 0.0
        kept = 0.5 ** (drafts / half_life)
        reached, accepted = state.reached * kept, state.accepted * kept
        size = min(depth, len(seen.reached))
        reached[:size] += seen.reached[:size]
        accepted[:size] += seen.accepted[:size]
        state = state._replace(reached=reached, accepted=accepted)
        if seen.seconds is None or seen.depth not in steps:
            return state
        at = group(min(seen.running, max_num_seqs)), steps.index(seen.depth)
        seconds, timed, one = state.seconds.copy(), state.timed.copy(), seen.seconds / seen.rounds
        timed[at] += seen.rounds
        if timed[at] == seen.rounds:
            seconds[at] = one
        else:  # a pause of the machine is no round's time
            weight = max(1 - (1 - ema_alpha) ** seen.rounds, seen.rounds / timed[at])
            seconds[at] += weight * (min(one, 2 * seconds[at]) - seconds[at])
        return state._replace(seconds=seconds, timed=timed)

    return AdaptivePolicy(init, choose, learn, steps)


def group(running: int) -> int:
    """Return the exponent of the power of two that holds the requests: 1, 2, 3-4, 5-8, ..."""
    return (running - 1).bit_length()


def tokens_per_round(state: Rates) -> Float[np.ndarray, "K1"]:
    """Return the expected tokens of a round for K = 0, 1, ...: 1 + a_1 + a_1 a_2 + ...

    A position that was hardly ever reached is taken to be like the one before it; at first all
    drafts are taken to be right.
    """
    expected, survival, alpha = [1.0], 1.0, 1.0
    for reached, accepted in zip(state.reached, state.accepted, strict=True):
        alpha = float((accepted + alpha) / (reached + 1))
        survival *= alpha
        expected.append(expected[-1] + survival)
    return np.array(expected)


def check_steps(candidate_steps: Sequence[int]) -> tuple[int, ...]:
    """Return the candidates in rising order; ValueError if there are none, or one is negative."""
    steps = tuple(sorted(set(candidate_steps)))
    if not steps or steps[0] < 0:
        raise ValueError(f"candidate_steps must list numbers of tokens >= 0, got {candidate_steps}")
    return steps


def require(name: str, value: float | int, low: float | int, high: float = math.inf) -> None:
    """Raise ValueError unless a value lies in [low, high]."""
    if not low <= value <= high:
        bounds = f"in [{low:g}, {high:g}]" if high < math.inf else f"at least {low:g}"
        raise ValueError(f"{name} must be {bounds}, got {value:g}")
