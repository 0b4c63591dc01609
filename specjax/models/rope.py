"""Rotary position angles: plain, with Llama 3's scaling by frequency, and with YaRN's."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.config import ModelConfig, Yarn


def inverse_frequencies(config: ModelConfig) -> Float[np.ndarray, "d2"]:
    """Return the rotation speed of each pair, in radians per position.

    Scaling divides the slow rotations by ``factor``, leaves the fast ones, and blends in
    between: over the turns within the original context (Llama 3.1), or over the pairs' index
    between those that turn ``beta_fast`` and ``beta_slow`` times (YaRN).
    """
    exponent = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
    speed = (1.0 / np.float32(config.rope_theta) ** exponent).astype(np.float32)
    scaling = config.rope_scaling
    if scaling is None:
        return speed
    original = scaling.original_max_position_embeddings
    if isinstance(scaling, Yarn):

        def pair_that_turns(times: float) -> float:
            turned = math.log(original / (times * 2 * math.pi)) / math.log(config.rope_theta)
            return turned * config.head_dim / 2

        first = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
        last = min(math.ceil(pair_that_turns(scaling.beta_slow)), config.head_dim - 1)
        width = max(last - first, 0.001)
        blend = 1 - (np.arange(config.head_dim // 2, dtype=np.float32) - first) / width
    else:
        turns = original * speed / (2 * np.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        blend = (turns - low) / (high - low)
    blend = np.clip(blend, 0.0, 1.0)
    return ((1 - blend) * speed / scaling.factor + blend * speed).astype(np.float32)


def rope_angles(
    config: ModelConfig, positions: Int[Array, "B N"]
) -> tuple[Float[Array, "B N d2"], Float[Array, "B N d2"]]:
    """Return the cosine and sine of every position's rotation, in float32.

    YaRN's longer contexts need sharper attention: it makes the rotated vectors longer.
    """
    speed = jnp.asarray(inverse_frequencies(config))
    angle = positions[:, :, None].astype(jnp.float32) * speed[None, None]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    if isinstance(config.rope_scaling, Yarn):
        longer = sharpness(config.rope_scaling, config.rope_scaling.mscale)
        longer /= sharpness(config.rope_scaling, config.rope_scaling.mscale_all_dim)
        cos, sin = cos * longer, sin * longer
    return cos, sin


def softmax_scale(config: ModelConfig) -> float:
    """Return what latent attention's scores are multiplied by."""
    latent, scaling = config.latent, config.rope_scaling
    assert latent is not None
    scale = (latent.qk_nope_head_dim + latent.qk_rope_head_dim) ** -0.5
    if isinstance(scaling, Yarn):
        scale *= sharpness(scaling, scaling.mscale_all_dim) ** 2
    return scale


def sharpness(scaling: Yarn, mscale: float) -> float:
    """Return YaRN's factor for the lengths of queries and keys."""
    return 1.0 + 0.1 * mscale * math.log(scaling.factor)
