"""Find the row of the drafter's state that has read a text: vLLM moves its rows, unnamed.

A row of a step is the text of an earlier call and the tokens sampled since. Rows with equal texts
may be exchanged: what a drafter keeps depends on the text alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specjax.engine.rows import bucket

PATIENCE = 64  # calls for which a row that vLLM does not show is kept: it may be waiting


class Row(NamedTuple):
    """One row as vLLM shows it."""

    tokens: np.ndarray  # prompt and output so far
    num_new: int  # sampled in this step


class Placed(NamedTuple):
    """Where the rows of a call are."""

    slots: list[int]  # of each row
    fresh: list[int]  # slots that begin a text
    dropped: list[int]  # names of the texts that were forgotten
    kept: np.ndarray | None  # the old slot of each slot, where their number changed


class Rows:
    """The texts of a drafter's rows: a slot each, their number a power of two."""

    def __init__(self, capacity: int):
        self.tokens = np.zeros((1, capacity), np.int32)
        self.lengths = np.zeros(1, np.int32)  # 0: free
        self.starts = np.zeros(1, np.int32)  # of the output
        self.read = np.zeros(1, np.int32)  # tokens that the drafter has read
        self.names = np.zeros(1, np.int64)  # of texts, from 1
        self.absent = np.zeros(1, np.int32)  # calls since vLLM showed it
        self._next = 1

    def place(self, rows: Sequence[Row]) -> Placed:
        """Return the slots of rows, whose texts are known up to their end from now on."""
        found = self._find(rows)
        self.absent += 1
        self.absent[[slot for slot in found if slot is not None]] = 0
        dropped = [int(self.names[slot]) for slot in np.flatnonzero(self.absent > PATIENCE)]
        dropped = [name for name in dropped if name]
        self._clear(np.flatnonzero(self.absent > PATIENCE))
        kept, before = None, set(self.names[self.names > 0])
        if len(rows) > len(self.lengths) or 4 * len(rows) <= len(self.lengths):
            kept, found = self._resize(bucket(len(rows), 1), found)
            dropped += [int(name) for name in before - set(self.names)]
        slots, fresh, taken = [], [], {slot for slot in found if slot is not None}
        for row, slot in zip(rows, found, strict=True):
            if slot is None:
                slot = self._choose(taken)
                taken.add(slot)
                fresh.append(slot)
                if self.names[slot]:
                    dropped.append(int(self.names[slot]))
                self._begin(slot, row)
            length = len(row.tokens)
            self.tokens[slot, self.lengths[slot] : length] = row.tokens[self.lengths[slot] :]
            self.lengths[slot], self.absent[slot] = length, 0
            slots.append(slot)
        return Placed(slots, fresh, dropped, kept)

    def _find(self, rows: Sequence[Row]) -> list[int | None]:
        found, taken = [], set()
        for row in rows:
            known = len(row.tokens) - row.num_new
            same = (
                slot
                for slot in np.flatnonzero(self.lengths == known)
                if known and slot not in taken
                if np.array_equal(self.tokens[slot, :known], row.tokens[:known])
            )
            slot = next((int(slot) for slot in same), None)
            taken.add(slot)
            found.append(slot)
        return found

    def _choose(self, taken: set[int]) -> int:
        """Return a free slot, or the one that has not been shown for longest."""
        free = [slot for slot in range(len(self.lengths)) if slot not in taken]
        return max(free, key=lambda slot: (not self.names[slot], self.absent[slot]))

    def _begin(self, slot: int, row: Row) -> None:
        self._clear(np.asarray([slot]))
        self.names[slot], self._next = self._next, self._next + 1
        self.starts[slot] = len(row.tokens) - row.num_new
        self.read[slot] = 1  # what follows the first token is read next

    def _clear(self, slots: np.ndarray) -> None:
        for array in (self.lengths, self.starts, self.read, self.names, self.absent):
            array[slots] = 0

    def _resize(self, size: int, found: list[int | None]) -> tuple[np.ndarray, list[int | None]]:
        """Change the number of slots; return the old slot of each, and the rows' new slots."""
        old = len(self.lengths)
        if size > old:
            keep = list(range(old))
        else:
            keep = [slot for slot in found if slot is not None]
            found = [None if slot is None else keep.index(slot) for slot in found]
        kept = np.asarray(keep + [0] * (size - len(keep)), np.int32)
        for name in ("tokens", "lengths", "starts", "read", "names", "absent"):
            setattr(self, name, getattr(self, name)[kept])
        self._clear(np.arange(len(keep), size))
        return kept, found
