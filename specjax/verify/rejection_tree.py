"""Rejection sampling on trees: try the siblings of every level one after the other.

Recursive rejection sampling (SpecInfer's multi-round verification, Miao et al. 2024; without
replacement Jeon et al. 2024). Each sibling is accepted as in a chain; each refusal leaves
p <- norm(max(p - q, 0)) to the next, and what the last one leaves is recovered from. Exact
whenever ``probs`` is the law each node was really drawn from, given its elder siblings: q
itself for siblings with replacement, q without their tokens for siblings without.
A chain is a tree with one sibling per level: then this is ``rejection``, token for token.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.types import Draft, Verdict
from specjax.verify.laws import on_laws
from specjax.verify.noise import Noise, by_round, race
from specjax.verify.rejection import law_at
from specjax.verify.verdict import emit


def descend(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
    """Accept a sibling if u * q(d) < p(d), p being what its elder siblings have left.

    Parents come before children and elder siblings before younger, so one pass suffices: a node
    that is no child of the last accepted one is passed over.
    What is left of p is kept as ``rest`` with its ``mass`` beside it, not divided by it.
    """
    batch_size, nodes, vocab_size = target.shape
    index = jnp.arange(depth + 1)[None]

    def visit(carry, node):
        path, here, count, rest, mass = carry
        token = draft.tokens[:, node, None]
        q = law_at(draft, jnp.full(batch_size, node), vocab_size)
        p_token = jnp.take_along_axis(rest, token, axis=1)[:, 0]
        q_token = jnp.take_along_axis(q, token, axis=1)[:, 0]
        asked = draft.valid[:, node] & (draft.parents[:, node] == here)
        accepted = asked & (noise.accept[:, node] * q_token * mass < p_token)
        left = jnp.maximum(rest - mass[:, None] * q, 0.0)
        total = left.sum(axis=-1)
        refused = asked & ~accepted & (total > 0)
        rest = jnp.where(refused[:, None], left, rest)
        rest = jnp.where(accepted[:, None], target[:, node], rest)
        mass = jnp.where(accepted, 1.0, jnp.where(refused, total, mass))
        count = count + accepted.astype(jnp.int32)
        path = jnp.where(accepted[:, None] & (index == count[:, None]), node, path)
        return (path, jnp.where(accepted, node, here), count, rest, mass), None

    zero = jnp.zeros(batch_size, jnp.int32)
    path = jnp.zeros((batch_size, depth + 1), jnp.int32)
    start = (path, zero, zero, target[:, 0], jnp.ones(batch_size, jnp.float32))
    (path, here, count, rest, _), _ = jax.lax.scan(visit, start, jnp.arange(1, nodes))
    return emit(draft, path, count, race(rest, noise, here))


rejection_tree = on_laws(descend, by_round)
