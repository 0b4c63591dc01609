"""Rejection sampling: verify a sampled chain so that the target's law is preserved.

Leviathan, Kalman & Matias 2023; Chen et al. 2023. Accept the draft token d with
probability min(1, p(d) / q(d)); at the first rejection sample from norm(max(p - q, 0)).
Exact: the joint law of the emitted tokens is the target's, whatever q is.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.types import Draft, Verdict
from specjax.verify.laws import on_laws
from specjax.verify.noise import Noise, race
from specjax.verify.verdict import emit_chain


def reject(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
    """Accept while u * q(d) < p(d); then recover from the residual, or draw the bonus.

    ``target`` is p after each node.
    """
    p, q = drafted(draft, target)
    return settle(noise.accept[:, 1:] * q < p, noise, draft, target)


def settle(
    accepted: Bool[Array, "B K"], noise: Noise, draft: Draft, target: Float[Array, "B N V"]
) -> Verdict:
    """Emit a chain up to its first refusal, and recover there from max(p - q, 0)."""
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
    """Sample what follows a node from norm(max(offered - q, 0)), or from p if that is 0."""
    residual = jnp.maximum(offered - law_after(draft, node, p.shape[-1]), 0.0)
    residual = jnp.where(residual.sum(axis=-1, keepdims=True) > 0, residual, p)
    return race(residual, noise, node)


def drafted(
    draft: Draft, target: Float[Array, "B N V"]
) -> tuple[Float[Array, "B K"], Float[Array, "B K"]]:
    """Look up p and q of the tokens of a chain; a draft that tells no law is sure of them."""
    following = jnp.roll(draft.tokens, -1, axis=1)[:, :, None]
    p = jnp.take_along_axis(target, following, axis=-1)[:, :-1, 0]
    if draft.probs is None:
        return p, jnp.ones_like(p)
    return p, jnp.take_along_axis(draft.probs, draft.tokens[:, :, None], axis=-1)[:, 1:, 0]


def law_after(draft: Draft, node: Int[Array, "B"], vocab_size: int) -> Float[Array, "B V"]:
    """Return q, the law the chain's next token was drawn from; 0 where nothing was drafted.

    So max(p - q, 0) is p there: the bonus token needs no case of its own.
    """
    rows, last = jnp.arange(node.shape[0]), draft.tokens.shape[1] - 1
    child = jnp.minimum(node + 1, last)
    offered = draft.valid[rows, child] & (node < last)
    return jnp.where(offered[:, None], law_at(draft, child, vocab_size), 0.0)


def law_at(draft: Draft, node: Int[Array, "B"], vocab_size: int) -> Float[Array, "B V"]:
    """Return the law a node's token was drawn from: one-hot where the draft tells none."""
    if draft.probs is None:
        token = jnp.take_along_axis(draft.tokens, node[:, None], axis=1)[:, 0]
        return jax.nn.one_hot(token, vocab_size, dtype=jnp.float32)
    return jnp.take_along_axis(draft.probs, node[:, None, None], axis=1)[:, 0]


rejection = on_laws(reject)
