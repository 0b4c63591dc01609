"""The responses that suffix decoding draws on for all requests: host state, first in first out.

The index is an argument of the compiled step, refreshed between calls: inside one call it is
frozen. Only outputs enter it; prompts stay in their own row's index.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from specjax.drafters import suffix_index
from specjax.drafters.suffix_index import Index
from specjax.engine.rounds import Progress

CHUNKS = 8, 64  # tokens that are indexed in one call: two programs, whatever the length

append = jax.jit(suffix_index.extend, donate_argnums=0)
forget = jax.jit(partial(suffix_index.extend, one=suffix_index.forget), donate_argnums=0)


class Corpus:
    """Responses, oldest first, and their index.

    Args:
        max_tree_depth: the longest string that is counted.
        max_requests: how many responses stay; at least 1.
        capacity: how many tokens stay.
        responses: what was said before, oldest first.
    """

    def __init__(
        self,
        max_tree_depth: int,
        max_requests: int,
        capacity: int,
        responses: Iterable[Sequence[int]] = (),
    ):
        self.max_tree_depth, self.max_requests = max_tree_depth, max_requests
        self.capacity, self.num_tokens = capacity, 0
        self.responses: dict[int, list[int]] = {}
        self.growing: dict[int, jax.Array] = {}  # where each running response stands in the index
        self.index = suffix_index.empty(1, max_tree_depth, capacity)
        self._next = 0
        for tokens in responses:
            name = self.start()
            self.extend(name, tokens)
            self.finish(name)

    def start(self) -> int:
        """Make room for a response and return its name."""
        name, self._next = self._next, self._next + 1
        self.responses[name], self.growing[name] = [], self._nowhere()
        while len(self.responses) > self.max_requests:
            self._evict()
        return name

    def extend(self, name: int, tokens: Sequence[int]) -> None:
        """Append tokens to a response, if it has not been evicted; the oldest may go."""
        while name in self.responses and self.num_tokens + len(tokens) > self.capacity:
            self._evict()
        if name in self.responses:
            self.responses[name] += tokens
            self.num_tokens += len(tokens)
            self.growing[name] = self._read(append, self.growing[name], tokens)

    def finish(self, name: int) -> None:
        """Say that a response grows no more. It stays until it is the oldest."""
        self.growing.pop(name, None)

    def shapes(self) -> Iterator[int]:
        """Compile what appends and what forgets; yields each size."""
        for size in CHUNKS:
            for one in (append, forget):
                nothing = jnp.zeros((1, size), jnp.int32), jnp.zeros(1, jnp.int32)
                self.index = one(self.index, *nothing)
            yield size

    def _evict(self) -> None:
        """Take the oldest response out of the index."""
        name = next(iter(self.responses))
        tokens = self.responses.pop(name)
        self.num_tokens -= len(tokens)
        self._read(forget, self._nowhere(), tokens)
        self.finish(name)

    def _read(self, one: Callable, active: jax.Array, tokens: Sequence[int]) -> jax.Array:
        """Append or forget tokens from where a response stands; return where it stands then."""
        size = CHUNKS[len(tokens) > CHUNKS[0]]
        self.index = self.index._replace(active=active)
        for start in range(0, len(tokens), size):
            chunk = tokens[start : start + size]
            padded = np.zeros((1, size), np.int32)
            padded[0, : len(chunk)] = chunk
            count = jnp.asarray([len(chunk)], jnp.int32)
            self.index = one(self.index, jnp.asarray(padded), count)
        return jnp.copy(self.index.active)  # the index itself is donated

    def _nowhere(self) -> jax.Array:
        return jnp.zeros((1, self.max_tree_depth), jnp.int32)


def follow(corpus: Corpus) -> Callable[[Progress | None], Index]:
    """Return what the loop calls with every request that has grown; it gives back the index."""
    names: dict[int, int] = {}
    known: dict[int, int] = {}

    def learn(progress: Progress | None) -> Index:
        if progress is None:
            return corpus.index
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
