"""What the same text would have taken with a smaller K, or with speculation off in places.

Where a draft token depends on nothing but the text before it (``draft_model`` with
``draft_sample_method`` "greedy" or "coupled", at any temperature: the text is the same too), a
log says of every position of the text whether its draft token would be right: those accepted, and
the one rejected. Only behind a draft accepted to its end nobody looked: the position of the bonus
token. Then other lengths can be replayed *exactly*, up to those positions, which are taken as all
wrong and as all right. With a fixed K1 < K more right tokens never take more rounds, so that the
truth lies between; and the replay never needs one if K1 + 1 divides K + 1, since both runs start
anew behind every bonus token. With a policy that looks back the two are examples, not bounds.

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
    """A replay, with the positions that nobody looked at taken as wrong, and as right."""

    wrong: Trace
    right: Trace

    @property
    def exact(self) -> bool:
        """Say whether the two agree in every round, so that nothing was assumed."""
        same = np.array_equal(self.wrong.emitted, self.right.emitted)
        return same and np.array_equal(self.wrong.drafted, self.right.drafted)

    @property
    def num_rounds(self) -> tuple[int, int]:
        """Return the rounds taken if all were right and wrong: with a fixed K, bounds."""
        return int(self.right.rounds.sum()), int(self.wrong.rounds.sum())


def fixed(num_speculative_tokens: int) -> Policy:
    """Draft always as many; 0 is plain decoding. Raises ValueError for less than 0."""
    require("num_speculative_tokens", num_speculative_tokens, 0)
    return lambda rounds: num_speculative_tokens


def off_after(num_misses: int, num_rounds: int, num_speculative_tokens: int) -> Policy:
    """After so many rounds in a row without an accepted token, decode plainly for ``num_rounds``.

    Then try one draft; a miss means another pause. Raises ValueError for less than one of either.
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
    """Draft only while the request has emitted fewer than ``num_tokens`` tokens."""
    return lambda rounds: (
        num_speculative_tokens if 1 + sum(one.emitted for one in rounds) < num_tokens else 0
    )


def alike(drafted: int) -> Scalar:
    """Let every round cost 1."""
    return 1.0


def counterfactual(trace: Trace, policy: Policy, cost: Cost = alike) -> Counterfactual:
    """Replay every request of a log under another policy.

    ``cost`` gives a round's time, so that times of different policies compare; prefills keep
    theirs. ``accepted`` of a request's last round may count tokens past the end of the text,
    where nobody looked; ``emitted`` does not. Exact as the module says, bounds otherwise.
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
    """Say of every position of a request's output whether a draft token for it is right."""
    known = []  # the prefill's token comes first: nothing was drafted for it
    for drafted, accepted in zip(one.drafted.tolist(), one.accepted.tolist(), strict=True):
        known += [RIGHT] * accepted + [WRONG if accepted < drafted else UNKNOWN]
    return known


def right(known: Sequence[int], position: int, guess: bool) -> bool:
    """Say whether the draft token for a position is right; by guess where nobody looked."""
    fate = known[position] if position < len(known) else UNKNOWN
    return guess if fate == UNKNOWN else fate == RIGHT
