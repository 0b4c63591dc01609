"""Compare the greedy texts of two servers and classify the first difference: rounding or a bug.

Rounding can decide between two tokens of nearly equal probability, after which the texts differ.
So at the first difference both servers score both tokens, given the common prefix.

The strongest result is "bitwise": the same tokens, each with the same logprob as a float32 number.
JSON holds those exactly if a server prints all their digits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.audit.client import Server

BITWISE = "bitwise"
NEAR = 0.1  # nats: the largest logprob difference that counts as a tie decided by rounding


class Greedy(NamedTuple):
    """The result on one prompt's greedy text."""

    prompt: str
    tokens: int  # compared
    equal: int  # tokens before the first difference
    verdict: str
    passed: bool


def compare_greedy(
    base: Server, reference: Server | None, prompt: str, ids: Sequence[int], tokens: int
) -> dict[str, Any]:
    """Return greedy texts, and the scores that classify their first difference, as JSON values.

    ``scores``: with a reference, each server's logprobs of the base's and of the reference's token
    at the first difference; without one, logprob and best logprob of every token. ``logprobs``:
    those of each text's tokens as returned with the completion; None if the server returns none.
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
    """Return the verdict on one prompt; tokens within ``near`` nats count as a tie."""
    ours, scores = found["base"], found["scores"]
    if "reference" not in found:
        behind = [best - logprob for logprob, best in scores]
        at = next((i for i, gap in enumerate(behind) if gap > near), len(ours))
        if at == len(ours):
            return Greedy(prompt, len(ours), at, "every token is its own likeliest", True)
        verdict = f"bug: token {ours[at]} is {behind[at]:.3f} nats behind the likeliest"
        return Greedy(prompt, len(ours), at, verdict, False)
    theirs = found["reference"]
    at, compared = first_difference(ours, theirs), max(len(ours), len(theirs))
    own, their = found.get("logprobs") or (None, None)
    logprobs = compare_logprobs(own, their, at)
    if at == compared:
        if logprobs == BITWISE:
            return Greedy(prompt, compared, at, f"{BITWISE}: tokens and logprobs are equal", True)
        return Greedy(prompt, compared, at, f"equal{logprobs and f', logprobs {logprobs}'}", True)
    if scores is None:
        return Greedy(prompt, compared, at, "bug: one text ends where the other goes on", False)
    (ours_by_base, theirs_by_base), (ours_by_reference, theirs_by_reference) = scores
    lost, gained = theirs_by_base - ours_by_base, ours_by_reference - theirs_by_reference
    tokens = f"{ours[at]}, not {theirs[at]}"
    if max(abs(lost), abs(gained)) <= near:
        verdict = f"near tie: {tokens}, {abs(lost):.2g} nats apart"
        return Greedy(
            prompt, compared, at, verdict + (logprobs and f"; logprobs before: {logprobs}"), True
        )
    if lost > near:
        verdict = f"bug: the server said {tokens}, which it scores {lost:.3f} nats higher"
    elif gained > near:
        verdict = f"bug in the reference: it scores {tokens}, {gained:.3f} nats higher"
    else:
        verdict = f"the models differ: each scores its own token higher ({tokens})"
    return Greedy(prompt, compared, at, verdict, False)


def is_equal(verdict: str) -> bool:
    """Return whether a verdict means that the texts are equal."""
    return verdict.startswith((BITWISE, "equal"))


def compare_logprobs(
    ours: Sequence[float] | None, theirs: Sequence[float] | None, count: int
) -> str:
    """Return "bitwise" or the largest difference between the first ``count`` logprobs, as text.

    "" if there are no logprobs, or if digits are missing, so that they are not float32 numbers.
    """
    if not count or min(len(ours or ()), len(theirs or ())) < count:
        return ""
    both = np.array([(ours or ())[:count], (theirs or ())[:count]], np.float64)  # None: NaN
    if not (both.astype(np.float32) == both).all():
        return ""
    apart = np.abs(both[0] - both[1]).max()
    return f"up to {apart:.2g} apart" if apart else BITWISE


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
