"""Keep the queue of requests and the slots of those that run: by priority, then first come first.

Bookkeeping on the host only. Every slot has room for a text of full length, so a request may run
as soon as a slot is free; the number of slots follows the number of running requests.
"""

import bisect
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from specjax.engine.request_state import RequestState


class Full(RuntimeError):
    """The queue is full, or the service is closing."""


class Scheduler:
    """Holds the waiting requests by priority and arrival, and the running ones by slot.

    Args:
        sizes: numbers of slots that a batch may have, rising.
        max_waiting: how many requests may wait beyond those that can run; None: any number.
    """

    def __init__(self, sizes: Sequence[int], max_waiting: int | None = None):
        self.sizes, self.max_waiting = tuple(sizes), max_waiting
        self.waiting: deque[RequestState] = deque()
        self.prefilling: list[RequestState] = []  # being prefilled; slots are reserved for them
        self.decoding: dict[int, RequestState] = {}
        self.num_slots = self.sizes[0]

    def __len__(self) -> int:
        return len(self.waiting) + self.num_running

    def use(self, sizes: Sequence[int]) -> None:
        """Take other numbers of slots, among them the present one if a request runs."""
        self.sizes = tuple(sizes)
        if self.num_slots not in self.sizes:
            self.num_slots = self.sizes[0]

    @property
    def num_running(self) -> int:
        """Return the number of requests that have a slot, or one reserved."""
        return len(self.decoding) + len(self.prefilling)

    def put(self, requests: Sequence[RequestState]) -> None:
        """Queue all of the requests, or raise ``Full`` and queue none."""
        if self.max_waiting is not None:
            most = self.sizes[-1] + self.max_waiting
            if len(self) + len(requests) > most:
                raise Full(
                    f"{len(self)} requests run or wait, and at most {most} may: "
                    f"no room for {len(requests)} more now."
                )
        for one in requests:
            bisect.insort(self.waiting, one, key=lambda waiting: waiting.request.priority)

    def next(
        self, together: Callable[[list[RequestState]], int] = lambda _: 1
    ) -> list[RequestState]:
        """Return the requests to prefill: the current ones, else the next that wait.

        Args:
            together: given the waiting requests, returns how many to prefill in one pass.
        """
        if not self.prefilling:
            first = list(islice(self.waiting, self.sizes[-1] - len(self.decoding)))
            count = together(first) if first else 0
            self.prefilling = [self.waiting.popleft() for _ in range(count)]
        return self.prefilling

    def place(self, request_state: RequestState) -> int:
        """Move a request that has been prefilled to the first free slot, and return that."""
        slot = next(i for i in range(self.num_slots) if i not in self.decoding)
        self.prefilling.remove(request_state)
        self.decoding[slot] = request_state
        return slot

    def remove(self, request_state: RequestState) -> int | None:
        """Remove a request, waiting or running; return the slot it had, if any."""
        slot = next((slot for slot, one in self.decoding.items() if one is request_state), None)
        if slot is not None:
            del self.decoding[slot]
        elif request_state in self.prefilling:
            self.prefilling.remove(request_state)
        else:
            self.waiting.remove(request_state)
        return slot

    def larger(self) -> int:
        """Return the next larger number of slots."""
        return next(size for size in self.sizes if size > self.num_slots)

    def smaller(self) -> int:
        """Return the next smaller number of slots, 0 if there is none."""
        return max((size for size in self.sizes if size < self.num_slots), default=0)

    def resize(self, size: int) -> list[int]:
        """Move the running requests to slots 0, 1, ...; return the slots they had, in order."""
        kept = sorted(self.decoding)
        self.decoding = {new: self.decoding[old] for new, old in enumerate(kept)}
        self.num_slots = size
        return kept
