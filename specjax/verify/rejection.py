"""Rejection sampling of a chain: emitted tokens have the target's distribution.

Leviathan, Kalman & Matias 2023 (arXiv:2211.17192); Chen et al. 2023 (arXiv:2302.01318). Accept
the draft token d with probability min(1, p(d) / q(d)); at the first rejection sample from
norm(max(p - q, 0)). Exact: the joint distribution of the emitted tokens is the target's,
whatever q is.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.core.types import Draft, Verdict
from specjax.verify.noise import Noise, exponential_race
from specjax.verify.probs_rule import probs_rule
from specjax.verify.verdict import emit_chain


def reject(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
    """Accept while u * q(d) < p(d); then sample the recovered or the bonus token.

    ``target`` is p after each node.
    """
    p, q = token_probs(draft, target)
    return accept_prefix(noise.accept[:, 1:] * q < p, noise, draft, target)


def accept_prefix(
    accepted: Bool[Array, "B K"], noise: Noise, draft: Draft, target: Float[Array, "B N V"]
) -> Verdict:
    """Emit a chain up to its first rejection, and a token sampled from max(p - q, 0) there."""
    accepted = draft.valid[:, 1:] & accepted
    num_accepted = jnp.cumprod(accepted, axis=1).sum(axis=1, dtype=jnp.int32)
    p = jnp.take_along_axis(target, num_accepted[:, None, None], axis=1)[:, 0]
    return emit_chain(draft, num_accepted, recover(p, p, noise, draft, num_accepted))


def recover(
    p: Float[Array, "B V"],
    offered: Float[Array, "B V"],
    noise: Noise,
    draft: Draft,
    node: Int[Array, "B"],
) -> Int[Array, "B"]:
    """Sample the token after a node from norm(max(offered - q, 0)), or from p if that is 0."""
    residual = jnp.maximum(offered - draft_probs_after(draft, node, p.shape[-1]), 0.0)
    residual = jnp.where(residual.sum(axis=-1, keepdims=True) > 0, residual, p)
    return exponential_race(residual, noise, node)


def token_probs(
    draft: Draft, target: Float[Array, "B N V"]
) -> tuple[Float[Array, "B K"], Float[Array, "B K"]]:
    """Return p and q of each draft token of a chain; q is 1 where ``draft.probs`` is None."""
    following = jnp.roll(draft.tokens, -1, axis=1)[:, :, None]
    p = jnp.take_along_axis(target, following, axis=-1)[:, :-1, 0]
    if draft.probs is None:
        return p, jnp.ones_like(p)
    return p, jnp.take_along_axis(draft.probs, draft.tokens[:, :, None], axis=-1)[:, 1:, 0]


def draft_probs_after(draft: Draft, node: Int[Array, "B"], vocab_size: int) -> Float[Array, "B V"]:
    """Return q, which the draft token after ``node`` was drawn from; 0 if there is none.

    Then max(p - q, 0) is p: the bonus token is sampled as a recovered one is.
    """
    rows, last = jnp.arange(node.shape[0]), draft.tokens.shape[1] - 1
    child = jnp.minimum(node + 1, last)
    offered = draft.valid[rows, child] & (node < last)
    return jnp.where(offered[:, None], draft_probs_at(draft, child, vocab_size), 0.0)


def draft_probs_at(draft: Draft, node: Int[Array, "B"], vocab_size: int) -> Float[Array, "B V"]:
    """Return q, which a node's token was drawn from; one-hot where ``draft.probs`` is None."""
    if draft.probs is None:
        token = jnp.take_along_axis(draft.tokens, node[:, None], axis=1)[:, 0]
        return jax.nn.one_hot(token, vocab_size, dtype=jnp.float32)
    return jnp.take_along_axis(draft.probs, node[:, None, None], axis=1)[:, 0]


rejection = probs_rule(reject)
