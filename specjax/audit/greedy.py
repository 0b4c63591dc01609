"""Greedy texts compared, and the first difference explained: rounding or bug?

Rounding may decide between two tokens that are nearly tied, and after that the texts go
their own ways. So at the first difference both servers are asked to score both tokens after
what the texts have in common.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from specjax.audit.client import Server

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
    """
    ours = base.greedy(prompt, tokens)
    if reference is None:
        return {"base": ours, "scores": base.score(ids, ours)}
    theirs = reference.greedy(prompt, tokens)
    found: dict[str, Any] = {"base": ours, "reference": theirs, "scores": None}
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
    if at == compared:
        return Greedy(prompt, compared, at, "equal", True)
    if scores is None:
        return Greedy(prompt, compared, at, "bug: one text ends where the other goes on", False)
    (ours_by_base, theirs_by_base), (ours_by_reference, theirs_by_reference) = scores
    lost, gained = theirs_by_base - ours_by_base, ours_by_reference - theirs_by_reference
    tokens = f"{ours[at]}, not {theirs[at]}"
    if max(abs(lost), abs(gained)) <= near:
        return Greedy(prompt, compared, at, f"near tie: {tokens}, {abs(lost):.2g} nats apart", True)
    if lost > near:
        said = f"bug: the server said {tokens}, which it scores {lost:.3f} nats higher"
    elif gained > near:
        said = f"bug in the reference: it scores {tokens}, {gained:.3f} nats higher"
    else:
        said = f"the models differ: each scores its own token higher ({tokens})"
    return Greedy(prompt, compared, at, said, False)


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Return how many tokens two texts begin with in common."""
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
