"""Show how far long work has come: a bar on a terminal, now and then a line in a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_PER_LINE = 10.0


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to be told (done, all); everything goes to stderr."""
    console, last = Console(stderr=True), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    quiet = not console.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=quiet
    ) as progress:
        task = progress.add_task(what, total=None)

        def tell(done: int, total: int) -> None:
            nonlocal last
            progress.update(task, completed=done, total=total)
            if quiet and time.monotonic() - last >= SECONDS_PER_LINE:
                last = time.monotonic()
                console.print(f"{what}: {done} of {total}")

        yield tell
