"""Explain where two arms' greedy texts first part, rounding or a bug; and how equal equals are."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from specjax.ab.arms import Arm
from specjax.ab.compare import by_load
from specjax.ab.questions import Dataset
from specjax.ab.records import Log, Triage, Unit, append
from specjax.audit.greedy import NEAR, first_difference, is_equal, judge_greedy

MOST = 20  # first differences explained per arm
AGAIN = 3  # equal texts per arm that are written again, for their logprobs


def explain_differences(
    path: Path, log: Log, arms: Sequence[Arm], datasets: Sequence[Dataset]
) -> Log:
    """Let the base and each arm score both tokens where their greedy texts first part.

    Of texts that are equal a few are written again, with logprobs: are these bitwise the same?
    The verdicts join the log, in the file too. For single prompts, not chats, of arms that tell
    token ids and can score; others stay unexplained.
    """
    found = list(log.triage)
    base, *others = arms
    for dataset in datasets:
        texts = {one.id: one.turns[0] for one in dataset.questions if len(one.turns) == 1}
        for arm in others:
            pair = arm.spec.label, dataset.name
            known = [one for one in found if (one.arm, one.dataset) == pair]
            told = {one.prompt for one in known}
            same = sum(is_equal(one.verdict) for one in known)
            parted = len(known) - same
            for prompt, ours, theirs in told_by_both(log, dataset.name, arm, base):
                equal = ours == theirs
                enough = same >= AGAIN if equal else parted >= MOST
                if prompt in told or prompt not in texts or enough:
                    continue
                told.add(prompt)
                same, parted = same + equal, parted + (not equal)
                with contextlib.suppress(ValueError, ConnectionError):
                    explain = write_again if equal else explain_parting
                    triage = explain(arm, base, dataset.name, prompt, texts[prompt], ours, theirs)
                    append(path, triage)
                    found.append(triage)
    return log._replace(triage=tuple(found))


def told_by_both(
    log: Log, dataset: str, arm: Arm, base: Arm
) -> Iterator[tuple[str, Sequence[int], Sequence[int]]]:
    """Yield (prompt, the arm's ids, the base's) of every prompt that both completed."""
    for (name, _), units in by_load(log.units).items():
        if name == dataset:
            ours, theirs = (said(units.get(one.spec.label, ())) for one in (arm, base))
            for prompt in ours:
                if prompt in theirs:
                    yield prompt, ours[prompt], theirs[prompt]


def said(units: Sequence[Unit]) -> dict[str, tuple[int, ...]]:
    """Return the ids of every prompt's text, where they are known."""
    return {one.prompt: one.tokens for unit in units for one in unit.requests if one.tokens}


def explain_parting(
    arm: Arm,
    base: Arm,
    dataset: str,
    prompt: str,
    text: str,
    ours: Sequence[int],
    theirs: Sequence[int],
) -> Triage:
    """Explain one parting; the logprobs are of the texts read as prompts.

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
    told = {"base": ours, "reference": theirs, "scores": scores, "logprobs": logprobs}
    found = judge_greedy(prompt, told, NEAR)
    return Triage(arm.spec.label, dataset, prompt, at, found.verdict, found.passed)


def write_again(
    arm: Arm,
    base: Arm,
    dataset: str,
    prompt: str,
    text: str,
    ours: Sequence[int],
    theirs: Sequence[int],
) -> Triage:
    """Compare the logprobs with which both write the text that they agree on.

    Raises ValueError or ConnectionError if an arm cannot.
    """
    (again, own), (other, their) = (one.greedy(text, len(ours)) for one in (arm, base))
    if list(again) != list(other):
        return explain_parting(arm, base, dataset, prompt, text, again, other)
    told = {"base": again, "reference": other, "scores": None, "logprobs": [own, their]}
    found = judge_greedy(prompt, told, NEAR)
    return Triage(arm.spec.label, dataset, prompt, len(again), found.verdict, found.passed)
