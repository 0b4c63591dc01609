"""Explain where two arms' greedy texts first part: rounding, or a bug?"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from specjax.ab.arms import Arm
from specjax.ab.compare import by_load
from specjax.ab.questions import Dataset
from specjax.ab.records import Log, Triage, Unit, append
from specjax.audit.greedy import NEAR, first_difference, judge_greedy

MOST = 20  # first differences explained per arm


def explain_differences(
    path: Path, log: Log, arms: Sequence[Arm], datasets: Sequence[Dataset]
) -> Log:
    """Let the base and each arm score both tokens where their greedy texts first part.

    The verdicts join the log, in the file too. For single prompts, not chats, of arms that tell
    token ids and can score; others stay unexplained.
    """
    found = list(log.triage)
    base, *others = arms
    for dataset in datasets:
        texts = {one.id: one.turns[0] for one in dataset.questions if len(one.turns) == 1}
        for arm in others:
            told = {
                one.prompt
                for one in found
                if (one.arm, one.dataset) == (arm.spec.label, dataset.name)
            }
            for prompt, ours, theirs in partings(log, dataset.name, arm, base):
                if prompt in told or prompt not in texts or len(told) >= MOST:
                    continue
                told.add(prompt)
                with contextlib.suppress(ValueError, ConnectionError):
                    triage = explain(arm, base, dataset.name, prompt, texts[prompt], ours, theirs)
                    append(path, triage)
                    found.append(triage)
    return log._replace(triage=tuple(found))


def partings(
    log: Log, dataset: str, arm: Arm, base: Arm
) -> Iterator[tuple[str, Sequence[int], Sequence[int]]]:
    """Yield (prompt, the arm's ids, the base's) of every prompt whose texts part."""
    for (name, _), units in by_load(log.units).items():
        if name == dataset:
            ours, theirs = (said(units.get(one.spec.label, ())) for one in (arm, base))
            for prompt in ours:
                if ours[prompt] != theirs.get(prompt, ours[prompt]):
                    yield prompt, ours[prompt], theirs[prompt]


def said(units: Sequence[Unit]) -> dict[str, tuple[int, ...]]:
    """Return the ids of every prompt's text, where they are known."""
    return {one.prompt: one.tokens for unit in units for one in unit.requests if one.tokens}


def explain(
    arm: Arm,
    base: Arm,
    dataset: str,
    prompt: str,
    text: str,
    ours: Sequence[int],
    theirs: Sequence[int],
) -> Triage:
    """Explain one parting. Raises ValueError or ConnectionError if an arm cannot score."""
    at = first_difference(ours, theirs)
    scores = None
    if at < min(len(ours), len(theirs)):
        common = list(ours[:at])
        scores = [
            [one.score(text, [*common, side[at]])[-1] for side in (ours, theirs)]
            for one in (arm, base)
        ]
    found = judge_greedy(prompt, {"base": ours, "reference": theirs, "scores": scores}, NEAR)
    return Triage(arm.spec.label, dataset, prompt, at, found.verdict, found.passed)
