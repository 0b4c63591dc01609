"""The responses that suffix decoding shares among requests: host state, first in first out.

Their index is an argument of the compiled step, refreshed between calls: inside one call it does
not change. Only outputs enter it; prompts stay in their own row's index.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from specjax.drafters import suffix_index
from specjax.drafters.suffix_index import Index
from specjax.engine.request_state import RequestState

CHUNKS = 8, 64  # tokens that are indexed in one call: two programs, whatever the length

append = jax.jit(suffix_index.extend, donate_argnums=0)
forget = jax.jit(partial(suffix_index.extend, one=suffix_index.forget), donate_argnums=0)


class Corpus:
    """Responses, oldest first, and the suffix index of their tokens.

    Args:
        max_tree_depth: the longest string of tokens that is counted.
        max_requests: how many responses are kept; at least 1.
        capacity: how many tokens are kept.
        responses: the token ids to start with, oldest first.
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
        self.growing: dict[int, jax.Array] = {}  # running response -> its position in the index
        self.index = suffix_index.empty(1, max_tree_depth, capacity)
        self._next = 0
        for tokens in responses:
            name = self.start()
            self.extend(name, tokens)
            self.finish(name)

    def start(self) -> int:
        """Add an empty response and return its name; the oldest may be evicted."""
        name, self._next = self._next, self._next + 1
        self.responses[name], self.growing[name] = [], self._nowhere()
        while len(self.responses) > self.max_requests:
            self._evict()
        return name

    def extend(self, name: int, tokens: Sequence[int]) -> None:
        """Append tokens to a response, unless it has been evicted; the oldest may be evicted."""
        while name in self.responses and self.num_tokens + len(tokens) > self.capacity:
            self._evict()
        if name in self.responses:
            self.responses[name] += tokens
            self.num_tokens += len(tokens)
            self.growing[name] = self._read(append, self.growing[name], tokens)

    def finish(self, name: int) -> None:
        """Mark a response as complete. It stays until it is evicted."""
        self.growing.pop(name, None)

    def compile(self) -> None:
        """Compile the programs that append and remove tokens."""
        index = self.copy()
        for size in CHUNKS:
            for one in (append, forget):
                nothing = jnp.zeros((1, size), jnp.int32), jnp.zeros(1, jnp.int32)
                index = one(index, *nothing)

    def copy(self) -> Index:
        """Return a copy of the index, which the next tokens do not overwrite."""
        return jax.tree.map(jnp.copy, self.index)

    def _evict(self) -> None:
        """Remove the oldest response from the index."""
        name = next(iter(self.responses))
        tokens = self.responses.pop(name)
        self.num_tokens -= len(tokens)
        self._read(forget, self._nowhere(), tokens)
        self.finish(name)

    def _read(self, one: Callable, active: jax.Array, tokens: Sequence[int]) -> jax.Array:
        """Append or remove tokens at a position of the index; return the position after them."""
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


def follow(corpus: Corpus) -> Callable[[RequestState | None], Index]:
    """Return a ``Learn`` callback for the loop: it appends a request's new tokens to the corpus.

    With a request or with None, it returns the present index.
    """
    names: dict[int, int] = {}
    known: dict[int, int] = {}

    def learn(request_state: RequestState | None) -> Index:
        if request_state is None:
            return corpus.index
        i = request_state.index
        if i not in names:
            names[i], known[i] = corpus.start(), 0
        corpus.extend(names[i], request_state.tokens[known[i] :])
        known[i] = len(request_state.tokens)
        if request_state.finish_reason is not None:
            corpus.finish(names.pop(i))
            del known[i]
        return corpus.index

    return learn
