"""Block verification: accept the longest prefix of a chain that can be accepted as a whole.

Sun et al. 2024 (ICLR 2025), algorithm 2. P_i = min(P_{i-1} p(d_i) / q(d_i), 1) is the chance
that the first i draft tokens are worth keeping, P_0 = 1. With S_i = sum(max(P_i p - q, 0)), p
and q of the token after them, prefix i is accepted with probability
h_i = S_i / (S_i + 1 - P_i), each by a uniform of its own; the longest accepted one is emitted
and its next token recovered from norm(max(P_i p - q, 0)). Exact, and in expectation never
shorter than ``rejection``: a prefix may be saved by the tokens after it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax import sampling as s
from specjax.types import Draft, Rule, Text, Verdict
from specjax.verify.noise import Noise, by_round
from specjax.verify.rejection import drafted, recover
from specjax.verify.verdict import emit_chain

LEAST = 2.0**-126  # stands for q(d) = 0, which no drawn token has


def verify(
    noise: Noise,
    draft: Draft,
    logits: Float[Array, "B N V"],
    text: Text,
    sampling: s.Sampling,
    depth: int,
) -> Verdict:
    """Accept the longest prefix i with u_i * (S_i + 1 - P_i) < S_i."""
    return accept_block(noise, draft, s.warp(logits, draft, text, sampling), depth)


def accept_block(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
    """Apply the rule to probabilities: ``target`` [B, N, V] is p after each node."""
    index = jnp.arange(depth + 1)[None]
    worth = prefix_worth(draft, target)
    surplus = prefix_surplus(draft, target, worth)
    accepted = noise.accept * (surplus + 1.0 - worth) < surplus
    num_accepted = jnp.where(accepted, index, 0).max(axis=1).astype(jnp.int32)
    p = jnp.take_along_axis(target, num_accepted[:, None, None], axis=1)[:, 0]
    offered = jnp.take_along_axis(worth, num_accepted[:, None], axis=1) * p
    return emit_chain(draft, num_accepted, recover(p, offered, noise, draft, num_accepted))


def prefix_worth(draft: Draft, target: Float[Array, "B N V"]) -> Float[Array, "B N"]:
    """Compute P_0 .. P_K; 0 from the first invalid node on."""

    def extend(worth, step):
        p, q, valid = step
        worth = jnp.where(valid, jnp.minimum(worth * p / jnp.maximum(q, LEAST), 1.0), 0.0)
        return worth, worth

    p, q = drafted(draft, target)
    start = jnp.ones(p.shape[0], jnp.float32)
    _, worth = jax.lax.scan(extend, start, (p.T, q.T, draft.valid[:, 1:].T))
    return jnp.concatenate([start[:, None], worth.T], axis=1)


def prefix_surplus(
    draft: Draft, target: Float[Array, "B N V"], worth: Float[Array, "B N"]
) -> Float[Array, "B N"]:
    """Compute S_0 .. S_K. Where nothing is drafted next q is 0, so S_i = P_i."""
    if draft.probs is None:
        q = jax.nn.one_hot(draft.tokens, target.shape[-1], dtype=jnp.float32)
    else:
        q = draft.probs
    q = jnp.where(draft.valid[:, 1:, None], q[:, 1:], 0.0)
    surplus = jnp.maximum(worth[:, :-1, None] * target[:, :-1] - q, 0.0).sum(axis=-1)
    return jnp.concatenate([surplus, worth[:, -1:]], axis=1)


block = Rule(by_round, verify)
