"""Measure several calls in turns, so that a drift of the machine's speed affects all alike."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

Result = TypeVar("Result")


def take_turns(
    calls: Sequence[Callable[[], Result]],
    reps: int,
    *,
    warm_up: int = 0,
    pause: float = 0.0,
    started: Callable[[int], None] = lambda turn: None,
) -> list[list[Result]]:
    """Return each call's results, one per repetition; in a repetition every call runs once.

    Args:
        calls: what is measured, in the order of the turns.
        reps: repetitions whose results are returned.
        warm_up: repetitions before them, whose results are dropped.
        pause: seconds to sleep before every call.
        started: called before every repetition with its number, warm-up included.
    """
    results: list[list[Result]] = [[] for _ in calls]
    for rep in range(warm_up + reps):
        started(rep)
        for call, own in zip(calls, results, strict=True):
            if pause:
                time.sleep(pause)
            result = call()
            if rep >= warm_up:
                own.append(result)
    return results


def tell(echo: Callable[[str], None], what: str, reps: int) -> Callable[[int], None]:
    """Return ``started`` of ``take_turns``: it echoes a line, such as "batch 4: run 2 of 5 ..."."""

    def started(rep: int) -> None:
        echo(f"{what}: " + (f"run {rep} of {reps}" if rep else "warming up") + " ...")

    return started


def median_in_turns(
    calls: Sequence[Callable[[], float]], reps: int, *, warm_up: int = 0
) -> list[float]:
    """Return the median of what each call returned, such as seconds, measured in turns."""
    return [statistics.median(own) for own in take_turns(calls, reps, warm_up=warm_up)]
