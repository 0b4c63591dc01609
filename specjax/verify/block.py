"""Block verification: accept the longest prefix of a chain that can be accepted as a whole.

Sun et al. 2024 (ICLR 2025). P_i = min(P_{i-1} p(d_i) / q(d_i), 1) is the chance
that the first i draft tokens are worth keeping, P_0 = 1. With S_i = sum(max(P_i p - q, 0)), p
and q of the token after them, prefix i is accepted with probability
h_i = S_i / (S_i + 1 - P_i), each by a uniform of its own; the longest accepted one is emitted
and its next token recovered from norm(max(P_i p - q, 0)). Exact, and in expectation never
shorter than ``rejection``: a prefix may be saved by the tokens after it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.types import Draft, Verdict
from specjax.verify.laws import on_laws
from specjax.verify.noise import Noise, by_round
from specjax.verify.rejection import law_after, recover
from specjax.verify.verdict import emit_chain

LEAST = 2.0**-126  # stands for q(d) = 0, which no drawn token has


def accept_block(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
    """Accept the longest prefix i with u_i * (S_i + 1 - P_i) < S_i.

    ``target`` is p after each node.
    """
    worth, surplus = weigh(draft, target)
    accepted = noise.accept * (surplus + 1.0 - worth) < surplus
    index = jnp.arange(depth + 1)[None]
    num_accepted = jnp.where(accepted, index, 0).max(axis=1).astype(jnp.int32)
    p = jnp.take_along_axis(target, num_accepted[:, None, None], axis=1)[:, 0]
    offered = jnp.take_along_axis(worth, num_accepted[:, None], axis=1) * p
    return emit_chain(draft, num_accepted, recover(p, offered, noise, draft, num_accepted))


def weigh(
    draft: Draft, target: Float[Array, "B N V"]
) -> tuple[Float[Array, "B N"], Float[Array, "B N"]]:
    """Compute P_0 .. P_K and S_0 .. S_K; P is 0 from the first invalid node on.

    Where nothing is drafted next q is 0, so S_i is P_i, and so is h_i.
    """
    batch_size, nodes, vocab_size = target.shape

    def extend(worth, node):
        q = law_after(draft, jnp.full(batch_size, node), vocab_size)
        p = jax.lax.dynamic_index_in_dim(target, node, axis=1, keepdims=False)
        surplus = jnp.maximum(worth[:, None] * p - q, 0.0).sum(axis=-1)
        child = jnp.minimum(node + 1, nodes - 1)
        token = draft.tokens[:, child, None]
        p_token, q_token = (jnp.take_along_axis(law, token, axis=1)[:, 0] for law in (p, q))
        kept = jnp.minimum(worth * p_token / jnp.maximum(q_token, LEAST), 1.0)
        return jnp.where(draft.valid[:, child], kept, 0.0), (worth, surplus)

    start = jnp.ones(batch_size, jnp.float32)
    _, (worth, surplus) = jax.lax.scan(extend, start, jnp.arange(nodes))
    return worth.T, surplus.T


block = on_laws(accept_block, by_round)
