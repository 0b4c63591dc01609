"""Toy targets with known distributions, small enough to enumerate.

They have the whole interface of a ``Target`` and take a table of logits as ``params``. After any
prefix a Markov chain's distribution is one row of it. No floats are summed, the row is looked up,
so that it is bitwise the same in any batch, chunk, window or tree. The two others have a cache
that counts, of either kind, so that its faults show in what is written.
"""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.core import delta
from specjax.core.cache import init_cache, init_recurrent, init_slots
from specjax.core.topology import attention_mask
from specjax.core.types import Cache, DeltaInputs, Forward, Output, Slots, Target
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
    return of_hidden(table[row])


def toy_target(forward: Forward, vocab_size: int) -> Target:
    """Return the target with this forward pass, whose hidden states are the logits."""

    def allocate(batch_size: int, capacity: int) -> Cache:
        return init_cache([init_slots(1, (1, 1), "float32", batch_size, capacity)], batch_size)

    def logits(params, hidden):
        return hidden.astype(jnp.float32)

    return Target(allocate, forward, logits, vocab_size, vocab_size)


@functools.cache
def attentive_target(vocab_size: int) -> Target:
    """Return a target that attends to its whole text; ``params`` [V, V] are a table as above.

    The logits are the rows of all tokens so far, each halved once for every position that lies
    between. A slot of the cache holds a token and its position.
    """

    def forward(
        params, tokens, positions, visible, cache, window, only=None, present=None, order="tree"
    ):
        (layer,), nodes = cache.layers, tokens.shape[1]
        rows = jnp.arange(tokens.shape[0])[:, None]
        first = cache.lengths[:, None] + visible.shape[2] - nodes
        where = rows, 0, first + jnp.arange(nodes)[None], 0
        keys, values = (x.astype(jnp.float32) for x in (tokens, positions))
        layer = Slots(layer.keys.at[where].set(keys), layer.values.at[where].set(values))
        token, position = (leaf[:, 0, :window, 0].astype(jnp.int32) for leaf in layer)
        age = (positions[:, :, None] - position[:, None]).astype(jnp.float32)
        share = jnp.where(attention_mask(cache.lengths, visible, window), 0.5**age, 0.0)
        hidden = (share[..., None] * params[token][:, None]).sum(axis=2)
        return of_hidden(pick_one(only, hidden)), cache._replace(layers=(layer,))

    return toy_target(forward, vocab_size)


@functools.cache
def recurrent_target(vocab_size: int) -> Target:
    """Return ``attentive_target`` with a recurrent state (``core.delta``) in place of slots."""

    def allocate(batch_size: int, capacity: int) -> Cache:
        return init_cache(
            [init_recurrent((1, 1, vocab_size), (1, 1), "float32", batch_size)], batch_size
        )

    def forward(
        params, tokens, positions, visible, cache, window, only=None, present=None, order="tree"
    ):
        (layer,), one = cache.layers, jnp.ones((*tokens.shape, 1))
        new = 2 * params[tokens][:, :, None]
        inputs = DeltaInputs(one[..., None], new, 0 * one, 0.5 * one, one)
        if order == "tree":
            out = delta.branch(layer.state, one[..., None], inputs, delta.parents_of(visible))
            layer = layer._replace(inputs=inputs)
        else:
            kept = jnp.ones(tokens.shape, bool) if present is None else present
            state, out = delta.advance(layer.state, one[..., None], inputs, kept)
            read = layer._replace(state=state)
            layer = read if order == "text" else layer._replace(inputs=inputs)
        return of_hidden(pick_one(only, out[:, :, 0])), cache._replace(layers=(layer,))

    return toy_target(forward, vocab_size)._replace(init_cache=allocate)


def of_hidden(hidden: Float[Array, "B N D"]) -> Output:
    """Return the output of a forward pass, with A = 0 taps."""
    return Output(hidden, jnp.zeros((*hidden.shape[:2], 0, hidden.shape[2]), hidden.dtype))
