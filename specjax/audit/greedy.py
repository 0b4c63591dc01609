"""Greedy texts compared, and the first difference explained: rounding or bug?

Rounding may decide between two tokens that are nearly tied, and after that the texts go
their own ways. So at the first difference both servers are asked to score both tokens after
what the texts have in common.

Above that stands "bitwise": the same tokens, and of every one the same logprob, as float32
numbers. JSON holds those exactly, as long as a server prints all their digits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.audit.client import Server

BITWISE = "bitwise"
NEAR = 0.1  # nats between two tokens' logprobs that rounding may bridge


class Greedy(NamedTuple):
    """What one prompt's greedy text says."""

    prompt: str
    tokens: int  # compared
    equal: int  # tokens before the first difference
    verdict: str
    passed: bool


def compare_greedy(
    base: Server, reference: Server | None, prompt: str, ids: Sequence[int], tokens: int
) -> dict[str, Any]:
    """Collect greedy texts, and what is needed to explain their first difference, as JSON.

    ``scores``: with a reference, for each server the logprobs of the base's and of the
    reference's token at the first difference; alone, logprob and best of every token.
    ``logprobs``: of each text's tokens, as the server said them while it wrote; None if it did not.
    """
    ours, own_logprobs = base.greedy(prompt, tokens)
    if reference is None:
        return {"base": ours, "scores": base.score(ids, ours)}
    theirs, their_logprobs = reference.greedy(prompt, tokens)
    found: dict[str, Any] = {"base": ours, "reference": theirs, "scores": None}
    found["logprobs"] = [own_logprobs, their_logprobs]
    at = first_difference(ours, theirs)
    if at < min(len(ours), len(theirs)):
        common = [*ids, *ours[:at]]
        found["scores"] = [
            [server.score(common, [text[at]])[0].logprob for text in (ours, theirs)]
            for server in (base, reference)
        ]
    return found


def judge_greedy(prompt: str, found: dict[str, Any], near: float) -> Greedy:
    """Explain the first difference: tokens within ``near`` nats may swap places by rounding."""
    ours, scores = found["base"], found["scores"]
    if "reference" not in found:
        behind = [best - logprob for logprob, best in scores]
        at = next((i for i, gap in enumerate(behind) if gap > near), len(ours))
        if at == len(ours):
            return Greedy(prompt, len(ours), at, "every token is its own likeliest", True)
        said = f"bug: token {ours[at]} is {behind[at]:.3f} nats behind the likeliest"
        return Greedy(prompt, len(ours), at, said, False)
    theirs = found["reference"]
    at, compared = first_difference(ours, theirs), max(len(ours), len(theirs))
    own, their = found.get("logprobs") or (None, None)
    told = compare_logprobs(own, their, at)
    if at == compared:
        if told == BITWISE:
            return Greedy(prompt, compared, at, f"{BITWISE}: tokens and logprobs are equal", True)
        return Greedy(prompt, compared, at, f"equal{told and f', logprobs {told}'}", True)
    if scores is None:
        return Greedy(prompt, compared, at, "bug: one text ends where the other goes on", False)
    (ours_by_base, theirs_by_base), (ours_by_reference, theirs_by_reference) = scores
    lost, gained = theirs_by_base - ours_by_base, ours_by_reference - theirs_by_reference
    tokens = f"{ours[at]}, not {theirs[at]}"
    if max(abs(lost), abs(gained)) <= near:
        said = f"near tie: {tokens}, {abs(lost):.2g} nats apart"
        return Greedy(prompt, compared, at, said + (told and f"; logprobs before: {told}"), True)
    if lost > near:
        said = f"bug: the server said {tokens}, which it scores {lost:.3f} nats higher"
    elif gained > near:
        said = f"bug in the reference: it scores {tokens}, {gained:.3f} nats higher"
    else:
        said = f"the models differ: each scores its own token higher ({tokens})"
    return Greedy(prompt, compared, at, said, False)


def is_equal(verdict: str) -> bool:
    """Say whether a verdict is of equal texts."""
    return verdict.startswith((BITWISE, "equal"))


def compare_logprobs(
    ours: Sequence[float] | None, theirs: Sequence[float] | None, count: int
) -> str:
    """Say how the logprobs of the first ``count`` tokens compare: "bitwise", or how far apart.

    "" where that cannot be said: there are none, or digits are missing, so that they are no
    float32 numbers.
    """
    if not count or min(len(ours or ()), len(theirs or ())) < count:
        return ""
    both = np.array([(ours or ())[:count], (theirs or ())[:count]], np.float64)  # None: NaN
    if not (both.astype(np.float32) == both).all():
        return ""
    apart = np.abs(both[0] - both[1]).max()
    return f"up to {apart:.2g} apart" if apart else BITWISE


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Return how many tokens two texts begin with in common."""
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
