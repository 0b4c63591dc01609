"""The gated delta rule, token by token: linear attention with a state that forgets and overwrites.

(Yang et al. 2024, arXiv:2412.06464.) Each head keeps a matrix S [d, e], and a token with key k,
value v, decay g and strength b does

    S <- e^g S        S <- S + k (b (v - S^T k))^T        its output is S^T q.

A round verifies its nodes without changing S, and then takes the accepted ones' steps again. The
steps are the same ones in the same order, so a state has the same bits however its tokens were
grouped into rounds; the chunked form of the rule sums in another order. Repeating them keeps the
nodes' keys and values, where a snapshot after each node keeps N states.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.core.types import DeltaInputs, PyTree, Recurrent


@jax.jit
def advance(
    state: Float[Array, "B H d e"],
    query: Float[Array, "B N KH d"],
    inputs: DeltaInputs,
    kept: Bool[Array, "B N"],
) -> tuple[Float[Array, "B H d e"], Float[Array, "B N H e"]]:
    """Return the state after the kept nodes of a chain, and each node's output."""

    def take(state, node):
        *facts, one = node
        after, output = step(state, *facts)
        return jnp.where(one[:, None, None, None], after, state), output

    state, outputs = jax.lax.scan(take, state, nodes_first((query, *inputs[:4], kept)))
    return state, jnp.moveaxis(outputs, 0, 1)[:, : query.shape[1]]


@jax.jit
def branch(
    state: Float[Array, "B H d e"],
    query: Float[Array, "B N KH d"],
    inputs: DeltaInputs,
    parents: Int[Array, "B N"],
) -> Float[Array, "B N H e"]:
    """Return the output of each node of a tree, whose state follows its parent's.

    ``parents`` come before their children; -1 stands for the text.
    """
    rows, nodes = jnp.arange(query.shape[0]), query.shape[1]
    room = jnp.zeros((state.shape[0], max(nodes, 2) + 1, *state.shape[1:]), state.dtype)

    def take(carry, node):
        states, number = carry
        *facts, parent = node
        after, output = step(states[rows, parent + 1], *facts)
        return (states.at[:, number].set(after), number + 1), output

    carry = room.at[:, 0].set(state), jnp.int32(1)
    _, outputs = jax.lax.scan(take, carry, nodes_first((query, *inputs[:4], parents)))
    return jnp.moveaxis(outputs, 0, 1)[:, :nodes]


def step(
    state: Float[Array, "B H d e"],
    query: Float[Array, "B KH d"],
    key: Float[Array, "B KH d"],
    value: Float[Array, "B H e"],
    decay: Float[Array, "B H"],
    strength: Float[Array, "B H"],
) -> tuple[Float[Array, "B H d e"], Float[Array, "B H e"]]:
    """Return the state after one token, and its output; a key head serves H / KH value heads.

    The state enters products as it is stored, so that their bits do not depend on what the compiler
    fuses around them.
    """
    each = state.shape[1] // key.shape[1]
    query, key = (jnp.repeat(x.astype(jnp.float32), each, axis=1) for x in (query, key))
    left = jnp.exp(decay)
    change = strength[..., None] * (value - left[..., None] * recall(state, key))
    state = left[..., None, None] * state + key[..., None] * change[:, :, None]
    return state, recall(state, query)


def recall(state: Float[Array, "B H d e"], key: Float[Array, "B H d"]) -> Float[Array, "B H e"]:
    """Return what the state holds for a key."""
    return jnp.einsum("bhde,bhd->bhe", state, key, precision=jax.lax.Precision.HIGHEST)


def nodes_first(arrays: PyTree) -> PyTree:
    """Return arrays [B, N, ...] as [N, B, ...], and a single node with a second one of zeros.

    XLA takes a loop of one step apart and fuses it with what surrounds it, which changes bits.
    """

    def one(x):
        x = jnp.moveaxis(x, 1, 0)
        return x if len(x) > 1 else jnp.concatenate([x, jnp.zeros_like(x)])

    return jax.tree.map(one, arrays)


def keep(layer: Recurrent, path: Int[Array, "B K1"] | None, count: Int[Array, "B"]) -> Recurrent:
    """Return a layer after ``count`` nodes: the first ones, or those along ``path``."""
    inputs = layer.inputs
    if inputs is None:  # a prompt's, which advanced in the forward pass
        return layer
    if path is not None:
        rows = jnp.arange(path.shape[0])[:, None]
        inputs = jax.tree.map(lambda x: x[rows, path], inputs)
    kept = jnp.arange(inputs.channels.shape[1])[None] < count[:, None]
    state, _ = advance(layer.state, inputs.keys, inputs, kept)
    return Recurrent(state, shift(layer.tail, inputs.channels, count))


def shift(
    tail: Float[Array, "B L C"], channels: Float[Array, "B N C"], count: Int[Array, "B"]
) -> Float[Array, "B L C"]:
    """Return the last L inputs of a convolution after the first ``count`` new ones."""
    rows = jnp.arange(tail.shape[0])[:, None]
    columns = count[:, None] + jnp.arange(tail.shape[1])[None]
    return jnp.concatenate([tail, channels], axis=1)[rows, columns]


@jax.jit
def convolve(
    weight: Float[Array, "C L1"],
    tail: Float[Array, "B L C"],
    channels: Float[Array, "B N C"],
    parents: Int[Array, "B N"],
) -> Float[Array, "B N C"]:
    """Return each channel's causal convolution over a node, its ancestors and the text before.

    Column L of ``weight`` is the node's own.
    """
    (batch, back, _), nodes = tail.shape, channels.shape[1]
    rows = jnp.arange(batch)[:, None]
    known = jnp.concatenate([tail, channels], axis=1)
    text = jnp.broadcast_to(jnp.arange(back)[None] - 1, (batch, back))
    before = jnp.concatenate([text, back + parents], axis=1)
    at = jnp.broadcast_to(back + jnp.arange(nodes)[None], (batch, nodes))
    total = jnp.zeros(channels.shape, jnp.float32)
    for tap in reversed(range(back + 1)):
        total = total + weight[None, None, :, tap].astype(jnp.float32) * known[rows, at]
        at = before[rows, at]
    return total


def parents_of(visible: Bool[Array, "B1 N N"]) -> Int[Array, "B1 N"]:
    """Return each node's parent, the last of its ancestors; -1 where it has none.

    >>> parents_of(jnp.asarray([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], bool))
    Array([[-1,  0,  0]], dtype=int32)
    """
    nodes = visible.shape[1]
    index = jnp.arange(nodes, dtype=jnp.int32)
    above = visible & (index[None] < index[:, None])[None]
    return jnp.where(above, index[None, None], -1).max(axis=2)
