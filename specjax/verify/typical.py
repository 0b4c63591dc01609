"""Typical acceptance, LOSSY: accept draft tokens above a probability that depends on the entropy.

Medusa (Cai et al. 2024, arXiv:2401.10774, section 3.3.2): accept a draft token d where
p(d) > min(epsilon, delta * exp(-H(p))), epsilon = ``posterior_threshold``, delta =
``posterior_alpha``: the higher the target's entropy, the lower the threshold. Of a tree the
deepest accepted path is emitted. The token after it is sampled from p, where Medusa takes the most
likely one. At temperature 0 p is one-hot, and only the target's argmax is accepted.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from specjax.core.topology import ancestors, depths
from specjax.core.types import Draft, Rule, Verdict
from specjax.verify.noise import Noise, exponential_race
from specjax.verify.probs_rule import probs_rule
from specjax.verify.verdict import emit


@functools.cache
def typical(posterior_threshold: float = 0.09, posterior_alpha: float = 0.3) -> Rule:
    """Return the rule for Medusa's epsilon and delta."""

    def kernel(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
        entropy = jax.scipy.special.entr(target).sum(axis=-1)
        threshold = jnp.minimum(posterior_threshold, posterior_alpha * jnp.exp(-entropy))
        rows = jnp.arange(target.shape[0])[:, None]
        p_token = target[rows, draft.parents, draft.tokens]
        likely = p_token > jnp.take_along_axis(threshold, draft.parents, axis=1)
        return accept_deepest(noise, draft, likely, target, depth)

    return probs_rule(kernel)


def accept_deepest(
    noise: Noise,
    draft: Draft,
    likely: Bool[Array, "B N"],
    target: Float[Array, "B N V"],
    depth: int,
) -> Verdict:
    """Emit the deepest path of nodes that are all ``likely``, and a token sampled from p."""
    nodes, levels = jnp.arange(draft.tokens.shape[1])[None], jnp.arange(depth + 1)[None]
    on_path = ancestors(draft.parents)
    level = depths(on_path)
    kept = (likely & draft.valid) | (nodes == 0)
    whole = (kept[:, None] | ~on_path).all(axis=-1)
    end = jnp.argmax(jnp.where(whole, level, 0), axis=1).astype(jnp.int32)
    mine = jnp.take_along_axis(on_path, end[:, None, None], axis=1)[:, 0]
    here = mine[:, None] & (level[:, None] == levels[:, :, None])
    path = jnp.argmax(here, axis=-1).astype(jnp.int32)
    num_accepted = jnp.take_along_axis(level, end[:, None], axis=1)[:, 0]
    p = jnp.take_along_axis(target, end[:, None, None], axis=1)[:, 0]
    return emit(draft, path, num_accepted, exponential_race(p, noise, end))
