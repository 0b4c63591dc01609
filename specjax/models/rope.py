"""RoPE (Su et al. 2021, arXiv:2104.09864): plain, or with one of the scalings of ``config``."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.core import ops
from specjax.models.config import LinearScaling, LongRope, ModelConfig, Rope, Yarn


class Angles(NamedTuple):
    """What the nodes' positions do to their queries and keys."""

    cos: Float[Array, "B N d2"] | None  # None: they are not turned
    sin: Float[Array, "B N d2"] | None
    scale: Float[Array, "B N"] | None = None  # of queries; None: 1


def inverse_frequencies(rope: Rope, head_dim: int) -> Float[np.ndarray, "d2"]:
    """Return the angle per position of each pair of features, in radians.

    Scaling divides the low frequencies by ``factor``, keeps the high ones, and interpolates in
    between: over the number of turns within the original context (Llama 3.1), or over the pairs'
    index between those that turn ``beta_fast`` and ``beta_slow`` times (YaRN). Or it divides all
    of them, by one number or by one each (LongRoPE).
    """
    dim, scaling = rope.dim or head_dim, rope.scaling
    exponent = np.arange(0, dim, 2, dtype=np.float32) / dim
    speed = (1.0 / np.float32(rope.theta) ** exponent).astype(np.float32)
    if scaling is None:
        return speed
    if isinstance(scaling, LinearScaling):
        return (speed / np.float32(scaling.factor)).astype(np.float32)
    if isinstance(scaling, LongRope):
        return (speed / np.asarray(scaling.divisors, np.float32)).astype(np.float32)
    original = scaling.original_max_position_embeddings
    if isinstance(scaling, Yarn):

        def pair_that_turns(times: float) -> float:
            turned = math.log(original / (times * 2 * math.pi)) / math.log(rope.theta)
            return turned * dim / 2

        first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
        if scaling.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        width = max(last - first, 0.001)
        blend = 1 - (np.arange(dim // 2, dtype=np.float32) - first) / width
    else:
        turns = original * speed / (2 * np.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        blend = (turns - low) / (high - low)
    blend = np.clip(blend, 0.0, 1.0)
    return ((1 - blend) * speed / scaling.factor + blend * speed).astype(np.float32)


def rope_angles(
    rope: Rope, head_dim: int, positions: Int[Array, "B N"]
) -> tuple[Float[Array, "B N d2"], Float[Array, "B N d2"]]:
    """Return cosines and sines of every position's angles, in float32.

    YaRN and LongRoPE multiply them by their attention factor.
    """
    speed = jnp.asarray(inverse_frequencies(rope, head_dim))
    angle = positions[:, :, None].astype(jnp.float32) * speed[None, None]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    longer = 1.0
    if isinstance(rope.scaling, Yarn):
        longer = sharpness(rope.scaling, rope.scaling.mscale)
        longer /= sharpness(rope.scaling, rope.scaling.mscale_all_dim)
    elif isinstance(rope.scaling, LongRope):
        longer = rope.scaling.attention_factor
    return (cos, sin) if longer == 1.0 else (cos * longer, sin * longer)


def turn(rope: Rope | None, x: Float[Array, "B N H d"], angles: Angles) -> Float[Array, "B N H d"]:
    """Return queries or keys, turned by their positions' angles.

    Pairs of neighbours come out as the two halves: queries and keys are permuted alike, so that
    their products are the same.
    """
    if rope is None:
        return x
    assert angles.cos is not None
    assert angles.sin is not None
    dim = rope.dim or x.shape[-1]
    turned, rest = x[..., :dim], x[..., dim:]
    if rope.paired:
        turned = jnp.concatenate([turned[..., ::2], turned[..., 1::2]], axis=-1)
    turned = ops.rotate(turned, angles.cos, angles.sin)
    return jnp.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned


def softmax_scale(config: ModelConfig) -> float:
    """Return the softmax scale of latent attention, YaRN's attention factor included."""
    latent, scaling = config.latent, config.rope.scaling
    assert latent is not None
    scale = (latent.qk_nope_head_dim + latent.qk_rope_head_dim) ** -0.5
    if isinstance(scaling, Yarn):
        scale *= sharpness(scaling, scaling.mscale_all_dim) ** 2
    return scale


def sharpness(scaling: Yarn, mscale: float) -> float:
    """Return YaRN's attention factor 0.1 * mscale * ln(factor) + 1."""
    return 1.0 + 0.1 * mscale * math.log(scaling.factor)
