"""Engines take turns on the same prompts: what an arm is, and how arms are timed."""

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import NamedTuple

# Seconds between turns. Threads that wait for work may spin for a while: in the second after its
# answer no engine used more than 0.03 s of processor time, most of it in the first 0.1 s
PAUSE = 0.1

Say = Callable[[str], None]
Key = tuple[str, str]  # engine, method


class Answer(NamedTuple):
    """What an engine wrote after some prompts."""

    tokens: list[list[int]]
    seconds: float
    peak_bytes: int | None = None  # most memory its process has had resident so far


Complete = Callable[[Sequence[Sequence[int]], int], Answer]


class Arm(NamedTuple):
    """One engine with one method."""

    engine: str  # "specjax", "vLLM float32", ...
    label: str  # the engine with its version
    method: str
    batches: tuple[int, ...]
    complete: Complete
    start: float = 0.0  # seconds from the start of its process to its first token

    @property
    def key(self) -> Key:
        """What names it in one comparison."""
        return self.engine, self.method


class Timing(NamedTuple):
    """What an arm did with one group of prompts."""

    tokens: list[list[int]]
    seconds: float  # median of the repetitions
    peak_bytes: int | None = None

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return sum(map(len, self.tokens)) / self.seconds


Timings = dict[Key, list[Timing]]


def in_groups(prompts: Sequence[list[int]], size: int) -> list[list[list[int]]]:
    """Cut into batches of one size; the last is filled from the beginning."""
    number = -(-len(prompts) // size)
    filled = list(islice(cycle(prompts), number * size))
    return [filled[i : i + size] for i in range(0, len(filled), size)]


def time_arms(
    arms: Sequence[Arm],
    groups: Sequence[list[list[int]]],
    batch: int,
    num_tokens: int,
    reps: int,
    say: Say,
) -> Timings:
    """Let the arms take turns; a first one of each, which may compile, is not counted.

    A turn is all groups, as in use: the first ones after another's turn find the caches cold.
    """
    serving = [arm for arm in arms if batch in arm.batches]
    answers: dict[Key, list[list[Answer]]] = {arm.key: [[] for _ in groups] for arm in serving}
    for rep in range(reps + 1):
        say(f"batch {batch}: " + (f"run {rep} of {reps}" if rep else "warming up") + " ...")
        for arm in serving:
            time.sleep(PAUSE)
            for i, group in enumerate(groups):
                answer = arm.complete(group, num_tokens)
                if rep:
                    answers[arm.key][i].append(answer)
    return {
        key: [
            Timing(
                own[-1].tokens, statistics.median(one.seconds for one in own), own[-1].peak_bytes
            )
            for own in groups
        ]
        for key, groups in answers.items()
    }


def total(timings: Sequence[Timing]) -> float:
    """Return the tokens per second over all groups."""
    num_tokens = sum(len(tokens) for one in timings for tokens in one.tokens)
    return num_tokens / sum(one.seconds for one in timings)
