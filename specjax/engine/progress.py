"""Show the progress of long work: a bar on a terminal, a line every 10 s in a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_PER_LINE = 10.0


def say(what: str) -> None:
    """Write one line to stderr."""
    Console(stderr=True, soft_wrap=True).print(what, highlight=False, markup=False)


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function (done, total) that updates a progress bar on stderr."""
    console, last = Console(stderr=True), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    quiet = not console.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=quiet
    ) as progress:
        task = progress.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            nonlocal last
            progress.update(task, completed=done, total=total)
            if quiet and time.monotonic() - last >= SECONDS_PER_LINE:
                last = time.monotonic()
                console.print(f"{what}: {done} of {total}")

        yield update
