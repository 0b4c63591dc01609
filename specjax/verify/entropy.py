"""Entropy-relaxed rejection, LOSSY: where the target is unsure, draft tokens are asked less.

vllm-ascend's "entropy verify": the uniform is multiplied by
min(exp(-posterior_alpha * H), posterior_threshold) before it is compared with p(d) / q(d). H
is the entropy of the target's raw law, before penalties, temperature and truncation. The
recovered token comes from max(p - q, 0), which fits the unrelaxed test only: so the law is
not the target's.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax import sampling as s
from specjax.types import Draft, Rule, Text, Verdict
from specjax.verify.noise import Noise, by_token
from specjax.verify.rejection import drafted, settle


@functools.cache
def entropy(posterior_threshold: float = 0.95, posterior_alpha: float = 0.4) -> Rule:
    """Build the rule; the defaults are vllm-ascend's, and (1, 0) is ``rejection``."""

    def verify(
        noise: Noise,
        draft: Draft,
        logits: Float[Array, "B N V"],
        text: Text,
        sampling: s.Sampling,
        depth: int,
    ) -> Verdict:
        target = s.warp(logits, draft, text, sampling)
        unsure = jax.scipy.special.entr(jax.nn.softmax(logits, axis=-1)).sum(axis=-1)
        ease = jnp.minimum(jnp.exp(-posterior_alpha * unsure), posterior_threshold)[:, :-1]
        p, q = drafted(draft, target)
        return settle(ease * noise.accept[:, 1:] * q < p, noise, draft, target)

    return Rule(by_token, verify)
