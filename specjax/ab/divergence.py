"""Classify the first difference between two arms' greedy texts: a tie in rounding, or a bug."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from specjax.ab.arms import Arm
from specjax.ab.compare import by_load
from specjax.ab.questions import Dataset
from specjax.ab.records import Divergence, Log, Unit, append
from specjax.audit.greedy import NEAR, first_difference, is_equal, judge_greedy

MOST = 20  # first differences explained per arm
AGAIN = 3  # equal texts per arm that are generated again, for their logprobs


def explain_differences(
    path: Path, log: Log, arms: Sequence[Arm], datasets: Sequence[Dataset]
) -> Log:
    """Return the log with verdicts on where each arm's greedy texts differ from the base's.

    At a first difference both arms score both tokens. A few of the equal texts are generated
    again with logprobs, to test whether those are bitwise equal. Verdicts are appended to the
    file too. Covers single prompts, not chats, of arms that return token ids and can score.
    """
    found = list(log.divergences)
    base, *others = arms
    for dataset in datasets:
        texts = {one.id: one.turns[0] for one in dataset.questions if len(one.turns) == 1}
        for arm in others:
            pair = arm.spec.label, dataset.name
            known = [one for one in found if (one.arm, one.dataset) == pair]
            seen = {one.prompt for one in known}
            same = sum(is_equal(one.verdict) for one in known)
            parted = len(known) - same
            for prompt, ours, theirs in completed_by_both(log, dataset.name, arm, base):
                equal = ours == theirs
                enough = same >= AGAIN if equal else parted >= MOST
                if prompt in seen or prompt not in texts or enough:
                    continue
                seen.add(prompt)
                same, parted = same + equal, parted + (not equal)
                with contextlib.suppress(ValueError, ConnectionError):
                    explain = write_again if equal else explain_parting
                    divergence = explain(
                        arm, base, dataset.name, prompt, texts[prompt], ours, theirs
                    )
                    append(path, divergence)
                    found.append(divergence)
    return log._replace(divergences=tuple(found))


def completed_by_both(
    log: Log, dataset: str, arm: Arm, base: Arm
) -> Iterator[tuple[str, Sequence[int], Sequence[int]]]:
    """Yield (prompt, the arm's token ids, the base's) of every prompt that both completed."""
    for (name, _), units in by_load(log.units).items():
        if name == dataset:
            ours, theirs = (texts_of(units.get(one.spec.label, ())) for one in (arm, base))
            for prompt in ours:
                if prompt in theirs:
                    yield prompt, ours[prompt], theirs[prompt]


def texts_of(units: Sequence[Unit]) -> dict[str, tuple[int, ...]]:
    """Return the token ids of every prompt's text, where they are known."""
    return {one.prompt: one.tokens for unit in units for one in unit.requests if one.tokens}


def explain_parting(
    arm: Arm,
    base: Arm,
    dataset: str,
    prompt: str,
    text: str,
    ours: Sequence[int],
    theirs: Sequence[int],
) -> Divergence:
    """Return the verdict on a first difference, from the logprobs of both texts as prompts.

    Raises ValueError or ConnectionError if an arm cannot score.
    """
    at = first_difference(ours, theirs)
    scores = logprobs = None
    if at < min(len(ours), len(theirs)):
        common = list(ours[:at])
        read = [
            [one.score(text, [*common, side[at]]) for side in (ours, theirs)] for one in (arm, base)
        ]
        scores = [[each[-1] for each in one] for one in read]
        logprobs = [one[0][:-1] for one in read]
    given = {"base": ours, "reference": theirs, "scores": scores, "logprobs": logprobs}
    found = judge_greedy(prompt, given, NEAR)
    return Divergence(arm.spec.label, dataset, prompt, at, found.verdict, found.passed)


def write_again(
    arm: Arm,
    base: Arm,
    dataset: str,
    prompt: str,
    text: str,
    ours: Sequence[int],
    theirs: Sequence[int],
) -> Divergence:
    """Return the verdict on an equal text, generated again by both with logprobs.

    Raises ValueError or ConnectionError if an arm cannot.
    """
    (again, own), (other, their) = (one.greedy(text, len(ours)) for one in (arm, base))
    if list(again) != list(other):
        return explain_parting(arm, base, dataset, prompt, text, again, other)
    given = {"base": again, "reference": other, "scores": None, "logprobs": [own, their]}
    found = judge_greedy(prompt, given, NEAR)
    return Divergence(arm.spec.label, dataset, prompt, len(again), found.verdict, found.passed)
