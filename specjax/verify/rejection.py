"""Rejection sampling: verify a sampled chain so that the target's law is preserved.

Leviathan, Kalman & Matias 2023; Chen et al. 2023. Accept the draft token d with
probability min(1, p(d) / q(d)); at the first rejection sample from norm(max(p - q, 0)).
Exact: the joint law of the emitted tokens is the target's, whatever q is.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax import sampling as s
from specjax.topology import ancestors, depths
from specjax.types import Draft, Rule, Text, Verdict

# A float32 draw below 2^-23 comes out as 0; this is its mean. A smaller stand-in would let the
# token win whatever its weight: 1.8% of all tokens at V = 151,936.
TINY = 2.0**-24


class Noise(NamedTuple):
    """Two separate streams, addressed by the index of the token they decide."""

    accept: Float[Array, "B N"]  # uniform; of the drafted token at each node
    recover: Float[Array, "B N V"]  # exponential; of the token after each node


def address(keys, text: Text, draft: Draft, sampling: s.Sampling, vocab_size: int) -> Noise:
    """Draw the noise of every node: its own acceptance, and what would follow it."""
    positions = text.lengths[:, None] + depths(ancestors(draft.parents))
    hot = jnp.any(sampling.temperature > 0)
    accept = s.draw(jax.random.uniform, s.address(keys, positions - 1, s.ACCEPT), 1, hot)
    recover = s.address(keys, positions, s.RECOVER)
    return Noise(accept[:, :, 0], s.draw(jax.random.exponential, recover, vocab_size, hot))


def verify(
    noise: Noise,
    draft: Draft,
    logits: Float[Array, "B N V"],
    text: Text,
    sampling: s.Sampling,
    depth: int,
) -> Verdict:
    """Accept while u * q(d) < p(d); then recover from the residual, or draw the bonus."""
    vocab_size = logits.shape[-1]
    path = s.trail(draft, vocab_size)
    target = s.law(s.constrain(logits, path, text, sampling), sampling)
    return reject(noise, draft, target, depth)


def reject(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
    """Apply the rule to probabilities: ``target`` [B, N, V] is p after each node.

    ``draft`` is a chain; without ``probs`` its law is one-hot. An invalid node has q = 0,
    so the residual of its parent is p itself: the bonus token needs no case of its own.
    """
    if draft.probs is None:
        q = jax.nn.one_hot(draft.tokens, target.shape[-1], dtype=target.dtype)
    else:
        q = draft.probs
    q = jnp.where(draft.valid[:, 1:, None], q[:, 1:], 0.0)  # of node i + 1, given node i
    token = draft.tokens[:, 1:, None]
    p_token = jnp.take_along_axis(target[:, :-1], token, axis=-1)[:, :, 0]
    q_token = jnp.take_along_axis(q, token, axis=-1)[:, :, 0]
    accepted = draft.valid[:, 1:] & (noise.accept[:, 1:] * q_token < p_token)
    num_accepted = jnp.cumprod(accepted, axis=1).sum(axis=1, dtype=jnp.int32)

    after = num_accepted[:, None, None]
    p = jnp.take_along_axis(target, after, axis=1)[:, 0]
    q = jnp.concatenate([q, jnp.zeros_like(target[:, :1])], axis=1)
    residual = jnp.maximum(p - jnp.take_along_axis(q, after, axis=1)[:, 0], 0.0)
    residual = jnp.where(residual.sum(axis=-1, keepdims=True) > 0, residual, p)
    waiting = jnp.take_along_axis(noise.recover, after, axis=1)[:, 0]
    last = jnp.argmax(residual / jnp.maximum(waiting, TINY), axis=-1).astype(jnp.int32)

    index = jnp.arange(depth + 1)[None]
    nodes = jnp.broadcast_to(index, (target.shape[0], depth + 1))
    following = jnp.concatenate([draft.tokens[:, 1:], last[:, None]], axis=1)
    tokens = jnp.where(index == num_accepted[:, None], last[:, None], following)
    return Verdict(nodes, tokens, num_accepted)


rejection = Rule(address, verify)
