"""Record the time at which each round of each request ended, and write the event log."""

import time
from collections.abc import Sequence
from pathlib import Path

from specjax.engine.input_processor import Prompt
from specjax.engine.request_state import RequestState
from specjax.engine.rows import Request
from specjax.host.group import is_first


class Recorder:
    """Records one call of ``LLM.generate``. A request is named by its id, its samples "id-index".

    Raises:
        ValueError: the path is a folder.
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
        self._seen: dict[int, tuple[RequestState, list[float]]] = {}

    def see(self, request_state: RequestState) -> None:
        """Record the time of the rounds that are new."""
        now = time.perf_counter() - self._start
        _, times = self._seen.setdefault(request_state.index, (request_state, []))
        times += [now] * (len(request_state.rounds) - len(times))

    def write(self) -> None:
        """Write the event log, without rounds that a stop string cut off.

        Of several processes the first writes it.
        """
        if not is_first():
            return
        from specjax.traces.events import Event, write_trace  # its package imports scipy

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
                for index, (request_state, times) in sorted(self._seen.items())
                for step, (one, now) in enumerate(zip(request_state.rounds, times, strict=False))
            ],
        )
