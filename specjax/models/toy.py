"""Toy targets with known laws: small enough to enumerate, exact enough to compare bitwise.

Both satisfy the whole ``Target`` contract and take a table of logits as ``params``,
so the law after any prefix is one row of a matrix anybody can read. No sum of floats is in
them: the row is looked up, so it is the same in any batch, chunk, window or tree.
"""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from specjax import ops
from specjax.cache import init_cache
from specjax.models.parts import pick_one
from specjax.topology import attention_mask
from specjax.types import Cache, Output, Target


@functools.cache
def markov_target(vocab_size: int) -> Target:
    """Build a first-order Markov chain: ``params`` [V, V] holds the logits after each token.

    ``hidden`` of a node is its token's own row, so D = V and ``logits`` is the identity. It
    reads no cache and writes none; its one leaf is there for the contract.
    """

    def forward(params, tokens, positions, visible, cache, window, only=None, present=None):
        return look_up(params, *pick_one(only, (tokens,))), cache

    return toy_target(forward, vocab_size)


@functools.cache
def history_target(vocab_size: int) -> Target:
    """Build a target whose next token depends on every visible token and on its position.

    ``params`` [R, V]: the logits after a prefix are row ``digest(prefix) % R``. Tokens live in
    the keys leaf and positions in the values leaf, and a node sums over the slots its mask
    shows; so a wrong slot, mask, length, position or window picks another row. The sum is of
    integers modulo 2^32: exact in any order.
    """

    def forward(params, tokens, positions, visible, cache, window, only=None, present=None):
        seen = attention_mask(cache.lengths, visible, window)
        first = cache.lengths + (visible.shape[2] - tokens.shape[1])
        slots = first[:, None] + jnp.arange(tokens.shape[1])[None]
        keys = ops.write_kv(cache.keys[0], as_leaf(tokens), slots)
        values = ops.write_kv(cache.values[0], as_leaf(positions), slots)
        words = digest(keys[:, 0, :window, 0], values[:, 0, :window, 0], seen)
        row = (words % params.shape[0]).astype(jnp.int32)
        (row,) = pick_one(only, (row,))
        return look_up(params, row), cache._replace(keys=(keys,), values=(values,))

    return toy_target(forward, vocab_size)


def digest(
    tokens: Float[Array, "B W"], positions: Float[Array, "B W"], seen: Bool[Array, "B N W"]
) -> UInt32[Array, "B N"]:
    """Sum a mixed word of every (token, position) a node sees, modulo 2^32."""
    word = (tokens.astype(jnp.uint32) + 1) * jnp.uint32(0x9E3779B1)
    word ^= (positions.astype(jnp.uint32) + 1) * jnp.uint32(0x85EBCA77)
    word = (word ^ (word >> 15)) * jnp.uint32(0xC2B2AE3D)
    word ^= word >> 13
    return jnp.where(seen, word[:, None], jnp.uint32(0)).sum(axis=-1, dtype=jnp.uint32)


def look_up(table: Float[Array, "R V"], row: Int[Array, "B N"]) -> Output:
    """Take rows of a table of logits as what the forward pass shows; A = 0 taps."""
    hidden = table[row]
    return Output(hidden, jnp.zeros((*row.shape, 0, table.shape[1]), hidden.dtype))


def as_leaf(x: Int[Array, "B N"]) -> Float[Array, "B N 1 1"]:
    """Store small integers as float32, one head of size 1; exact below 2^24."""
    return x.astype(jnp.float32)[:, :, None, None]


def toy_target(forward, vocab_size: int) -> Target:
    """Complete a target whose hidden states are the logits."""

    def allocate(batch_size: int, capacity: int) -> Cache:
        return init_cache(1, 1, (1, 1), "float32", batch_size, capacity)

    def logits(params, hidden):
        return hidden.astype(jnp.float32)

    return Target(allocate, forward, logits, vocab_size, vocab_size)
