"""Arms, and timing them in turns on the same prompts."""

import functools
import statistics
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import NamedTuple

from specjax.measure.turns import take_turns, tell

# Seconds between turns. Idle worker threads may spin for a while: in the second after its answer no
# engine used more than 0.03 s of processor time, most of it in the first 0.1 s
PAUSE = 0.1

Echo = Callable[[str], None]
Key = tuple[str, str]  # engine, method


class Answer(NamedTuple):
    """An engine's completions of a batch of prompts."""

    tokens: list[list[int]]
    seconds: float
    peak_bytes: int | None = None  # peak resident memory of its process so far


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
        """The arm's identity within one comparison."""
        return self.engine, self.method


class Timing(NamedTuple):
    """One arm's completions of one batch of prompts, and their time."""

    tokens: list[list[int]]
    seconds: float  # median of the repetitions
    peak_bytes: int | None = None

    @property
    def speed(self) -> float:
        """Output tokens per second."""
        return sum(map(len, self.tokens)) / self.seconds


Timings = dict[Key, list[Timing]]


def in_groups(prompts: Sequence[list[int]], size: int) -> list[list[list[int]]]:
    """Return the prompts in batches of one size; the last is filled up from the beginning."""
    number = -(-len(prompts) // size)
    filled = list(islice(cycle(prompts), number * size))
    return [filled[i : i + size] for i in range(0, len(filled), size)]


def time_arms(
    arms: Sequence[Arm],
    groups: Sequence[list[list[int]]],
    batch: int,
    num_tokens: int,
    reps: int,
    echo: Echo,
) -> Timings:
    """Return every arm's timings; arms take turns, and the first turn, which compiles, is dropped.

    One turn is all groups in sequence: the first of them runs on caches that another arm has
    filled, as in use.
    """
    serving = [arm for arm in arms if batch in arm.batches]

    def turn(arm: Arm) -> list[Answer]:
        return [arm.complete(group, num_tokens) for group in groups]

    calls = [functools.partial(turn, arm) for arm in serving]
    started = tell(echo, f"batch {batch}", reps)
    runs = take_turns(calls, reps, warm_up=1, pause=PAUSE, started=started)
    pairs = zip(serving, runs, strict=True)
    return {arm.key: [summed(own) for own in zip(*turns, strict=True)] for arm, turns in pairs}


def summed(answers: Sequence[Answer]) -> Timing:
    """Return the timing of one group from its answers, one per repetition."""
    seconds = statistics.median(one.seconds for one in answers)
    return Timing(answers[-1].tokens, seconds, answers[-1].peak_bytes)


def total(timings: Sequence[Timing]) -> float:
    """Return the tokens per second over all groups."""
    num_tokens = sum(len(tokens) for one in timings for tokens in one.tokens)
    return num_tokens / sum(one.seconds for one in timings)
