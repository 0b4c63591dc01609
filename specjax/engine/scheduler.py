"""Who waits, and who runs in which slot: first come, first served.

Host bookkeeping only. Every slot holds a text of full length, so a request may run as soon as a
slot is free; how many slots there are follows how many requests run.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from specjax.engine.rounds import Progress


class Full(RuntimeError):
    """No more requests are accepted now: try again later."""


class Scheduler:
    """Requests in order of arrival, and the slots.

    Args:
        sizes: numbers of slots that a batch may have, rising.
        max_waiting: how many requests may wait beyond those that can run; None: any number.
    """

    def __init__(self, sizes: Sequence[int], max_waiting: int | None = None):
        self.sizes, self.max_waiting = tuple(sizes), max_waiting
        self.waiting: deque[Progress] = deque()
        self.reading: list[Progress] = []  # their prompts are being read; slots are kept for them
        self.live: dict[int, Progress] = {}
        self.num_slots = self.sizes[0]

    def __len__(self) -> int:
        return len(self.waiting) + self.num_running

    @property
    def num_running(self) -> int:
        """How many have or will have a slot."""
        return len(self.live) + len(self.reading)

    def put(self, requests: Sequence[Progress]) -> None:
        """Queue all of them, or raise ``Full`` and queue none."""
        if self.max_waiting is not None:
            most = self.sizes[-1] + self.max_waiting
            if len(self) + len(requests) > most:
                raise Full(
                    f"{len(self)} requests run or wait, and at most {most} may: "
                    f"no room for {len(requests)} more now."
                )
        self.waiting.extend(requests)

    def next(self, together: Callable[[list[Progress]], int] = lambda _: 1) -> list[Progress]:
        """Return the requests whose prompts are to be read: the current ones, or who comes next.

        ``together`` says how many of those that come next are read in one pass.
        """
        if not self.reading:
            first = list(islice(self.waiting, self.sizes[-1] - len(self.live)))
            count = together(first) if first else 0
            self.reading = [self.waiting.popleft() for _ in range(count)]
        return self.reading

    def place(self, progress: Progress) -> int:
        """Give a request that has been read the first free slot."""
        slot = next(i for i in range(self.num_slots) if i not in self.live)
        self.reading.remove(progress)
        self.live[slot] = progress
        return slot

    def remove(self, progress: Progress) -> int | None:
        """Forget a request, wherever it is; return the slot it had, if any."""
        slot = next((slot for slot, one in self.live.items() if one is progress), None)
        if slot is not None:
            del self.live[slot]
        elif progress in self.reading:
            self.reading.remove(progress)
        else:
            self.waiting.remove(progress)
        return slot

    def larger(self) -> int:
        """Return the next larger number of slots."""
        return next(size for size in self.sizes if size > self.num_slots)

    def smaller(self) -> int:
        """Return the next smaller number of slots, 0 if there is none."""
        return max((size for size in self.sizes if size < self.num_slots), default=0)

    def resize(self, size: int) -> list[int]:
        """Renumber the slots; return the old ones that come first now, in order."""
        kept = sorted(self.live)
        self.live = {new: self.live[old] for new, old in enumerate(kept)}
        self.num_slots = size
        return kept
