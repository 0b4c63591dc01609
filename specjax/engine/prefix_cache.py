"""``PrefixCache``: keys and values of prompts that were read, for prompts that begin alike.

The turns of a chat, or many questions about one text, begin with the same tokens: what was read
once is copied, and reading goes on after it (vLLM: prefix caching, there in blocks of 16 tokens,
here at any token). Reading in other pieces changes no bit (law 1), so neither does this. A
recurrent state cannot be cut at a token: nothing is kept of models that have one. A ring holds the
last positions only: so a prompt of such a model must share all but the last thousand tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from specjax.core import cache
from specjax.core.types import Recurrent, Ring, Slots, State
from specjax.engine.rows import Request

LEAST = 64  # positions: to read fewer takes no longer than to copy them
MOST_WRITTEN = 64  # positions past a prompt's end: padding, and one that a draft model reads ahead


class Prefix(NamedTuple):
    """The beginning of a prompt that has been read."""

    slots: list[Slots | Ring]  # of a row that has read it, and maybe more
    length: int  # positions


class Entry(NamedTuple):
    """A prompt that was read."""

    tokens: np.ndarray
    salt: str
    slots: list[Slots | Ring]
    num_bytes: int
    least: int  # positions: of fewer, a ring has lost some


class PrefixCache:
    """Keeps what was read of the last prompts, the least recently used leaves first.

    Args:
        most_bytes: of the keys and values that are kept.

    Attributes:
        num_queries: prompt tokens that were looked up (vLLM's counters).
        num_hits: those of them that need not be read.
    """

    def __init__(self, most_bytes: int):
        self._most_bytes = most_bytes
        self._entries: list[Entry] = []  # the least recently used first
        self.num_queries = self.num_hits = 0

    def find(self, request: Request) -> Prefix | None:
        """Return the longest known beginning of a request's prompt; None: it is too short.

        The last position is always read: the first token comes from it.
        """
        prompt = np.asarray(request.prompt)
        self.num_queries += len(prompt)
        best, most = None, LEAST
        for entry in self._entries:
            length = common(entry.tokens, prompt) - 1  # ``cache.resume`` says why
            if entry.salt == request.cache_salt and length >= max(most, entry.least):
                best, most = entry, length
        if best is None:
            return None
        self._entries = [*(one for one in self._entries if one is not best), best]
        self.num_hits += most
        return Prefix(best.slots, most)

    def add(self, request: Request, row: State, *, donated: bool) -> bool:
        """Keep what was read of a prompt; another that it continues is not needed any more.

        Return whether it is new, and kept.

        Args:
            request: whose prompt has been read.
            row: the state of its only row.
            donated: whether the row will be overwritten, and is to be copied.
        """
        slots = cache.all_slots(row)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(slots))
        if len(request.prompt) <= LEAST or size > self._most_bytes or is_recurrent(row):
            return False
        tokens, salt = np.asarray(request.prompt), request.cache_salt
        shared = [(e, common(e.tokens, tokens) if e.salt == salt else 0) for e in self._entries]
        if any(length == len(tokens) > entry.least for entry, length in shared):
            return False
        ringed = any(isinstance(one, Ring) for one in slots)
        least = len(tokens) + MOST_WRITTEN - cache.RING_ROOM if ringed else 0
        self._entries = [e for e, length in shared if not len(e.tokens) == length > least]
        if donated:
            slots = jax.tree.map(lambda leaf: leaf.copy(), slots)
        self._entries.append(Entry(tokens, salt, slots, size, least))
        while sum(entry.num_bytes for entry in self._entries) > self._most_bytes:
            self._entries.pop(0)
        return True


def common(some: np.ndarray, others: np.ndarray) -> int:
    """Return how many tokens two texts begin with that are the same."""
    size = min(len(some), len(others))
    differ = np.flatnonzero(some[:size] != others[:size])
    return int(differ[0]) if len(differ) else size


def is_recurrent(state: State) -> bool:
    """Return whether a state has a part that cannot be cut at a position."""
    leaves: Sequence[object] = jax.tree.leaves(
        (state.cache, state.drafter), is_leaf=lambda node: isinstance(node, Recurrent)
    )
    return any(isinstance(leaf, Recurrent) for leaf in leaves)
