"""A toy target with known distributions: a Markov chain, small enough to enumerate.

It has the whole interface of a ``Target`` and takes a table of logits as ``params``: the
distribution after any prefix is one row of a matrix. No floats are summed, the row is looked up,
so that it is bitwise the same in any batch, chunk, window or tree.
"""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.core.cache import init_cache, init_slots
from specjax.core.types import Cache, Forward, Output, Target
from specjax.models.modules import pick_one


@functools.cache
def markov_target(vocab_size: int) -> Target:
    """Return a first-order Markov chain; ``params`` [V, V] are the logits after each token.

    ``hidden`` of a node is its token's row, so that D = V and ``logits`` is the identity. The cache
    has one leaf, which is neither read nor written.
    """

    def forward(
        params, tokens, positions, visible, cache, window, only=None, present=None, order="tree"
    ):
        return look_up(params, *pick_one(only, (tokens,))), cache

    return toy_target(forward, vocab_size)


def look_up(table: Float[Array, "R V"], row: Int[Array, "B N"]) -> Output:
    """Return rows of a table of logits as a forward pass's output, with A = 0 taps."""
    hidden = table[row]
    return Output(hidden, jnp.zeros((*row.shape, 0, table.shape[1]), hidden.dtype))


def toy_target(forward: Forward, vocab_size: int) -> Target:
    """Return the target with this forward pass, whose hidden states are the logits."""

    def allocate(batch_size: int, capacity: int) -> Cache:
        return init_cache([init_slots(1, (1, 1), "float32", batch_size, capacity)], batch_size)

    def logits(params, hidden):
        return hidden.astype(jnp.float32)

    return Target(allocate, forward, logits, vocab_size, vocab_size)
