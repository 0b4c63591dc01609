"""Record when every round of every request ended, and write the event log."""

import time
from collections.abc import Sequence
from pathlib import Path

from specjax.engine.intake import Prompt
from specjax.engine.rounds import Progress
from specjax.engine.rows import Request
from specjax.traces.events import Event, write_trace


class Recorder:
    """Watch one call of ``LLM.generate``. A request is named by its id, its samples "id-index".

    Raises ValueError at once for a path that cannot be a file.
    """

    def __init__(self, path: Path, number: int, batch: Sequence[tuple[Prompt, list[Request]]]):
        if path.is_dir():
            raise ValueError(f"trace={str(path)!r} is a folder: name a file, such as trace.jsonl.")
        self._path, self._start = path, time.perf_counter()
        self._names = [
            f"{number + i}-{j}" if len(requests) > 1 else f"{number + i}"
            for i, (_, requests) in enumerate(batch)
            for j in range(len(requests))
        ]
        self._seen: dict[int, tuple[Progress, list[float]]] = {}

    def see(self, progress: Progress) -> None:
        """Note the time of the rounds that are new."""
        now = time.perf_counter() - self._start
        _, times = self._seen.setdefault(progress.index, (progress, []))
        times += [now] * (len(progress.rounds) - len(times))

    def write(self) -> None:
        """Write the log; rounds that a stop string cut away are not in it."""
        write_trace(
            self._path,
            [
                Event(
                    request=self._names[index],
                    step=step,
                    drafted=len(one.drafted),
                    accepted=one.num_accepted,
                    emitted=len(one.tokens),
                    time=now,
                )
                for index, (progress, times) in sorted(self._seen.items())
                for step, (one, now) in enumerate(zip(progress.rounds, times, strict=False))
            ],
        )
