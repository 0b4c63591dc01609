"""Entropy-relaxed rejection, LOSSY: the higher the target's entropy, the more is accepted.

vllm-ascend's "entropy verify": the uniform number is multiplied by
min(exp(-posterior_alpha * H), posterior_threshold) before it is compared with p(d) / q(d). H
is the entropy of softmax(logits), before penalties, temperature and truncation. The recovered
token is sampled from max(p - q, 0), which is right for the unrelaxed test only: the emitted tokens
do not have the target's distribution.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.core import sampling as s
from specjax.core.types import Draft, Rule, Sampling, Text, Verdict
from specjax.verify.noise import Noise, by_token
from specjax.verify.rejection import accept_prefix, token_probs


@functools.cache
def entropy(posterior_threshold: float = 0.95, posterior_alpha: float = 0.4) -> Rule:
    """Return the rule; the defaults are vllm-ascend's, and (1, 0) is ``rejection``."""

    def verify(
        noise: Noise,
        draft: Draft,
        logits: Float[Array, "B N V"],
        text: Text,
        sampling: Sampling,
        depth: int,
    ) -> Verdict:
        target = s.warp(logits, draft, text, sampling)
        unsure = jax.scipy.special.entr(jax.nn.softmax(logits, axis=-1)).sum(axis=-1)
        ease = jnp.minimum(jnp.exp(-posterior_alpha * unsure), posterior_threshold)[:, :-1]
        p, q = token_probs(draft, target)
        return accept_prefix(ease * noise.accept[:, 1:] * q < p, noise, draft, target)

    return Rule(by_token, verify)
