"""Replay a log with a smaller K, or with speculation off for some rounds.

Where a draft token depends on nothing but the text before it (``draft_model`` with
``draft_sample_method`` "greedy" or "coupled", at any temperature: the text is the same too), a
log shows at almost every position of the text whether its draft token is right: the accepted ones
are, the rejected one is not. Only the position of a bonus token, after a fully accepted draft, is
unknown. Other draft lengths can then be replayed *exactly* up to those positions, which are taken
once as all wrong and once as all right. With a fixed K1 < K more right tokens never take more
rounds, so the two replays are bounds; and no unknown position is used if K1 + 1 divides K + 1. With
a policy that depends on earlier rounds the two are examples, not bounds.

It does not hold where the draft depends on where the round began: ngram and suffix (a match is
looked up there), eagle, mtp, medusa (features there); nor for "probabilistic", whose text changes
with K. There, cut drafts at their own rounds: ``fits.tokens_by_k(...).truncated``.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from specjax.theory.arrays import Scalar, require
from specjax.traces.events import Event, Trace, to_trace

RIGHT, WRONG, UNKNOWN = 1, 0, -1


class Round(NamedTuple):
    """One replayed round."""

    drafted: int
    accepted: int
    emitted: int


Policy = Callable[[Sequence[Round]], int]  # the rounds so far -> how many tokens to draft
Cost = Callable[[int], Scalar]  # drafted tokens -> the round's time


class Counterfactual(NamedTuple):
    """Two replays: with the unknown positions taken as wrong, and as right."""

    wrong: Trace
    right: Trace

    @property
    def exact(self) -> bool:
        """Whether both replays have the same rounds, so that no unknown position matters."""
        same = np.array_equal(self.wrong.emitted, self.right.emitted)
        return same and np.array_equal(self.wrong.drafted, self.right.drafted)

    @property
    def num_rounds(self) -> tuple[int, int]:
        """The number of rounds if all unknown positions are right, and if all are wrong."""
        return int(self.right.rounds.sum()), int(self.wrong.rounds.sum())


def fixed(num_speculative_tokens: int) -> Policy:
    """Return the policy of a fixed K; 0 is plain decoding. Raises ValueError for less than 0."""
    require("num_speculative_tokens", num_speculative_tokens, 0)
    return lambda rounds: num_speculative_tokens


def off_after(num_misses: int, num_rounds: int, num_speculative_tokens: int) -> Policy:
    """Return the policy that pauses drafting after ``num_misses`` rounds without acceptance.

    A pause lasts ``num_rounds`` rounds; then one draft is tried, and a miss starts another pause.
    Raises ValueError if either is less than 1.
    """
    require("num_misses", num_misses, 1)
    require("num_rounds", num_rounds, 1)

    def policy(rounds: Sequence[Round]) -> int:
        plain = 0
        while plain < len(rounds) and not rounds[-1 - plain].drafted:
            plain += 1
        if plain:
            return 0 if plain < num_rounds else num_speculative_tokens
        last = rounds[-num_misses:]
        missed = len(last) == num_misses and not any(one.accepted for one in last)
        return 0 if missed else num_speculative_tokens

    return policy


def off_beyond(num_tokens: int, num_speculative_tokens: int) -> Policy:
    """Return the policy that drafts until a request has emitted ``num_tokens`` tokens."""
    return lambda rounds: (
        num_speculative_tokens if 1 + sum(one.emitted for one in rounds) < num_tokens else 0
    )


def alike(drafted: int) -> Scalar:
    """Return 1, as the cost of every round."""
    return 1.0


def counterfactual(trace: Trace, policy: Policy, cost: Cost = alike) -> Counterfactual:
    """Return the replays of every request of a log under another policy.

    ``cost`` gives a round's time, so that the times of policies can be compared; prefills keep
    theirs. ``accepted`` of a request's last round may count tokens past the end of the text, whose
    acceptance is unknown; ``emitted`` does not. Exact where the module describes it, else bounds.
    Raises ValueError where a policy drafts more than the log's K.
    """
    return Counterfactual(
        *(
            to_trace(
                event
                for number in range(len(trace.names))
                for event in replay(trace, number, policy, cost, guess)
            )
            for guess in (False, True)
        )
    )


def replay(trace: Trace, number: int, policy: Policy, cost: Cost, guess: bool):
    """Yield the events of one request."""
    one = trace.where(trace.request == number)
    known, end = fates(one), int(one.emitted.sum())
    name, time, position = trace.names[number], float(one.time[0]), 1
    yield Event(name, 0, 0, 0, 1, time)
    rounds: list[Round] = []
    while position < end:
        k = policy(rounds)
        require("tokens drafted by the policy", k, 0, trace.depth)
        accepted = 0
        while accepted < k and right(known, position + accepted, guess):
            accepted += 1
        emitted = min(accepted + 1, end - position)
        rounds.append(Round(k, accepted, emitted))
        position, time = position + emitted, time + float(cost(k))
        yield Event(name, len(rounds), k, accepted, emitted, time)


def fates(one: Trace) -> list[int]:
    """Return RIGHT, WRONG or UNKNOWN for the draft token at every position of the output."""
    known = []  # the prefill's token comes first: nothing was drafted for it
    for drafted, accepted in zip(one.drafted.tolist(), one.accepted.tolist(), strict=True):
        known += [RIGHT] * accepted + [WRONG if accepted < drafted else UNKNOWN]
    return known


def right(known: Sequence[int], position: int, guess: bool) -> bool:
    """Return whether the draft token of a position is right; ``guess`` if the log does not say.

    ``known`` are ``fates``; past its end nothing is known.
    """
    fate = known[position] if position < len(known) else UNKNOWN
    return guess if fate == UNKNOWN else fate == RIGHT
