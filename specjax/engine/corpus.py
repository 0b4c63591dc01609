"""The responses that suffix decoding draws on for all requests: host state, first in first out.

The index is an argument of the compiled step, refreshed between calls: inside one call it is
frozen. Only outputs enter it; prompts stay in their own row's index.
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax.drafters import suffix_index
from specjax.drafters.suffix_index import Index
from specjax.engine.rounds import Progress
from specjax.engine.rows import bucket

CAPACITY = 1 << 16  # tokens; 40 bytes x max_tree_depth each
LEAST_APPENDED = 8
SLACK = 4  # when it is full, the oldest 1 / SLACK goes, so that rebuilding it stays rare

extend = jax.jit(suffix_index.extend, donate_argnums=0)


class Corpus:
    """Responses, oldest first, and their index.

    Args:
        max_tree_depth: the longest string that is counted.
        max_requests: how many responses stay; at least 1.
        capacity: how many tokens stay.
    """

    def __init__(self, max_tree_depth: int, max_requests: int, capacity: int = CAPACITY):
        self.max_tree_depth, self.max_requests = max_tree_depth, max_requests
        self.capacity = capacity
        self.responses: dict[int, list[int]] = {}
        self.growing: dict[int, jax.Array] = {}  # where each running response stands in the index
        self.index, self.num_tokens = self._empty(), 0
        self._next = 0

    def start(self) -> int:
        """Make room for a response and return its name."""
        name, self._next = self._next, self._next + 1
        self.responses[name], self.growing[name] = [], self._nowhere()
        if len(self.responses) > self.max_requests:
            self._evict(self.max_requests - self.max_requests // SLACK, self.capacity)
        return name

    def extend(self, name: int, tokens: Sequence[int]) -> None:
        """Append tokens to a response, if it has not been evicted; the oldest may go."""
        if name not in self.responses or not tokens:
            return
        self.responses[name] += tokens
        self.num_tokens += len(tokens)
        if self.num_tokens > self.capacity:
            self._evict(self.max_requests, self.capacity - self.capacity // SLACK)
        else:
            self._append(name, tokens)

    def finish(self, name: int) -> None:
        """Say that a response grows no more. It stays until it is the oldest."""
        self.growing.pop(name, None)

    def shapes(self, most_tokens: int) -> Iterator[int]:
        """Compile what appends up to ``most_tokens`` tokens at once; yields each size."""
        size = LEAST_APPENDED
        while size < 2 * most_tokens:
            nothing = jnp.zeros((1, size), jnp.int32), jnp.zeros(1, jnp.int32)
            self.index = extend(self.index, *nothing)
            yield size
            size *= 2

    def _evict(self, num_requests: int, num_tokens: int) -> None:
        """Drop the oldest responses until so many are left, and index these anew."""
        while len(self.responses) > num_requests or self.num_tokens > num_tokens:
            self.num_tokens -= len(self.responses.pop(next(iter(self.responses))))
        self.index, running = self._empty(), set(self.growing)
        for name, tokens in self.responses.items():
            self.growing[name] = self._nowhere()
            self._append(name, tokens)
            if name not in running:
                self.finish(name)

    def _append(self, name: int, tokens: Sequence[int]) -> None:
        padded = np.zeros((1, bucket(len(tokens), LEAST_APPENDED)), np.int32)
        padded[0, : len(tokens)] = tokens
        index = self.index._replace(active=self.growing[name])
        count = jnp.asarray([len(tokens)], jnp.int32)
        self.index = extend(index, jnp.asarray(padded), count)
        self.growing[name] = jnp.copy(self.index.active)  # the index itself is donated

    def _empty(self) -> Index:
        return suffix_index.empty(1, self.max_tree_depth, self.capacity)

    def _nowhere(self) -> jax.Array:
        return jnp.zeros((1, self.max_tree_depth), jnp.int32)


def follow(corpus: Corpus) -> Callable[[Progress], Index]:
    """Return what the loop calls with every request that has grown; it gives back the index."""
    names: dict[int, int] = {}
    known: dict[int, int] = {}

    def learn(progress: Progress) -> Index:
        i = progress.index
        if i not in names:
            names[i], known[i] = corpus.start(), 0
        corpus.extend(names[i], progress.tokens[known[i] :])
        known[i] = len(progress.tokens)
        if progress.finish_reason is not None:
            corpus.finish(names.pop(i))
            del known[i]
        return corpus.index

    return learn
