"""Rejection sampling on trees: verify the siblings of every level one after the other.

Recursive rejection sampling (SpecInfer's multi-round verification, Miao et al. 2024,
arXiv:2305.09781; without replacement Jeon et al. 2024, arXiv:2402.14160). Each sibling is
accepted as in a chain; each rejection makes p <- norm(max(p - q, 0)) for the next sibling, and
after the last one the recovered token is sampled from it. Exact whenever ``probs`` are what each
node was drawn from, given the siblings before it: q itself for siblings with replacement, q
without their tokens for siblings without. A chain is a tree with one sibling per level: then this
is ``rejection``, token for token.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.core.types import Draft, Verdict
from specjax.verify.noise import Noise, by_round, exponential_race
from specjax.verify.probs_rule import probs_rule
from specjax.verify.rejection import draft_probs_at
from specjax.verify.verdict import emit


def descend(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
    """Accept a sibling if u * q(d) < p(d), p being the residual of the siblings before it.

    Parents come before children in a draft, so that one pass suffices: nodes that are no child of
    the last accepted one are skipped. The residual ``rest`` is not divided by its sum ``mass``.
    """
    batch_size, nodes, vocab_size = target.shape
    index = jnp.arange(depth + 1)[None]

    def visit(carry, node):
        path, here, count, rest, mass = carry
        token = draft.tokens[:, node, None]
        q = draft_probs_at(draft, jnp.full(batch_size, node), vocab_size)
        p_token = jnp.take_along_axis(rest, token, axis=1)[:, 0]
        q_token = jnp.take_along_axis(q, token, axis=1)[:, 0]
        tried = draft.valid[:, node] & (draft.parents[:, node] == here)
        accepted = tried & (noise.accept[:, node] * q_token * mass < p_token)
        left = jnp.maximum(rest - mass[:, None] * q, 0.0)
        total = left.sum(axis=-1)
        rejected = tried & ~accepted & (total > 0)
        rest = jnp.where(rejected[:, None], left, rest)
        rest = jnp.where(accepted[:, None], target[:, node], rest)
        mass = jnp.where(accepted, 1.0, jnp.where(rejected, total, mass))
        count = count + accepted.astype(jnp.int32)
        path = jnp.where(accepted[:, None] & (index == count[:, None]), node, path)
        return (path, jnp.where(accepted, node, here), count, rest, mass), None

    zero = jnp.zeros(batch_size, jnp.int32)
    path = jnp.zeros((batch_size, depth + 1), jnp.int32)
    start = (path, zero, zero, target[:, 0], jnp.ones(batch_size, jnp.float32))
    (path, here, count, rest, _), _ = jax.lax.scan(visit, start, jnp.arange(1, nodes))
    return emit(draft, path, count, exponential_race(rest, noise, here))


rejection_tree = probs_rule(descend, by_round)
