"""Block verification: accept the longest prefix of a chain that can be accepted as a whole.

Sun et al. 2024 (ICLR 2025, arXiv:2403.10444). P_i = min(P_{i-1} p(d_i) / q(d_i), 1), P_0 = 1, is
the probability of keeping the first i draft tokens. With S_i = sum(max(P_i p - q, 0)), p and q of
the token after them, prefix i is accepted with probability h_i = S_i / (S_i + 1 - P_i), each by a
uniform number of its own; the longest accepted one is emitted and the next token sampled from
norm(max(P_i p - q, 0)). Exact, and in expectation never shorter than ``rejection``: tokens after a
rejected one may still make a prefix accepted.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.core.types import Draft, Verdict
from specjax.verify.noise import Noise, by_round
from specjax.verify.probs_rule import probs_rule
from specjax.verify.rejection import draft_probs_after, recover
from specjax.verify.verdict import emit_chain

LEAST = 2.0**-126  # stands for q(d) = 0, which no drawn token has


def accept_block(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
    """Accept the longest prefix i with u_i * (S_i + 1 - P_i) < S_i.

    ``target`` is p after each node.
    """
    keep_probs, residual_mass = prefix_probs(draft, target)
    accepted = noise.accept * (residual_mass + 1.0 - keep_probs) < residual_mass
    index = jnp.arange(depth + 1)[None]
    num_accepted = jnp.where(accepted, index, 0).max(axis=1).astype(jnp.int32)
    p = jnp.take_along_axis(target, num_accepted[:, None, None], axis=1)[:, 0]
    offered = jnp.take_along_axis(keep_probs, num_accepted[:, None], axis=1) * p
    return emit_chain(draft, num_accepted, recover(p, offered, noise, draft, num_accepted))


def prefix_probs(
    draft: Draft, target: Float[Array, "B N V"]
) -> tuple[Float[Array, "B N"], Float[Array, "B N"]]:
    """Return the file's P_0 .. P_K (0 from the first invalid node on) and S_0 .. S_K.

    Where no token is drafted next q is 0, so that S_i and h_i are P_i.
    """
    batch_size, nodes, vocab_size = target.shape

    def extend(keep_probs, node):
        q = draft_probs_after(draft, jnp.full(batch_size, node), vocab_size)
        p = jax.lax.dynamic_index_in_dim(target, node, axis=1, keepdims=False)
        residual_mass = jnp.maximum(keep_probs[:, None] * p - q, 0.0).sum(axis=-1)
        child = jnp.minimum(node + 1, nodes - 1)
        token = draft.tokens[:, child, None]
        p_token, q_token = (jnp.take_along_axis(one, token, axis=1)[:, 0] for one in (p, q))
        kept = jnp.minimum(keep_probs * p_token / jnp.maximum(q_token, LEAST), 1.0)
        return jnp.where(draft.valid[:, child], kept, 0.0), (keep_probs, residual_mass)

    start = jnp.ones(batch_size, jnp.float32)
    _, (keep_probs, residual_mass) = jax.lax.scan(extend, start, jnp.arange(nodes))
    return keep_probs.T, residual_mass.T


block = probs_rule(accept_block, by_round)
