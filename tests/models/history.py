"""A toy target whose next token depends on all it sees: nothing wrong in a cache stays hidden."""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from specjax.core import ops
from specjax.core.topology import attention_mask
from specjax.core.types import Slots, Target
from specjax.models.modules import pick_one
from specjax.models.toy import look_up, toy_target


@functools.cache
def history_target(vocab_size: int) -> Target:
    """Build a target whose next token depends on every visible token and on its position.

    ``params`` [R, V]: the logits after a prefix are row ``digest(prefix) % R``. Tokens live in
    the keys leaf and positions in the values leaf, and a node sums over the slots its mask
    shows; so a wrong slot, mask, length, position or window picks another row. The sum is of
    integers modulo 2^32: exact in any order.
    """

    def forward(
        params, tokens, positions, visible, cache, window, only=None, present=None, order="tree"
    ):
        seen = attention_mask(cache.lengths, visible, window)
        first = cache.lengths + (visible.shape[2] - tokens.shape[1])
        slots = first[:, None] + jnp.arange(tokens.shape[1])[None]
        (layer,) = cache.layers
        keys = ops.write_kv(layer.keys, as_leaf(tokens), slots)
        values = ops.write_kv(layer.values, as_leaf(positions), slots)
        words = digest(keys[:, 0, :window, 0], values[:, 0, :window, 0], seen)
        row = (words % params.shape[0]).astype(jnp.int32)
        (row,) = pick_one(only, (row,))
        return look_up(params, row), cache._replace(layers=(Slots(keys, values),))

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


def as_leaf(x: Int[Array, "B N"]) -> Float[Array, "B N 1 1"]:
    """Store small integers as float32, one head of size 1; exact below 2^24."""
    return x.astype(jnp.float32)[:, :, None, None]
