"""Rotary position angles, plain and with Llama 3's frequency-dependent scaling."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.config import ModelConfig


def inverse_frequencies(config: ModelConfig) -> Float[np.ndarray, "d2"]:
    """Return the rotation speed of each pair, in radians per position.

    Llama 3.1's scaling divides the slow rotations (wavelength beyond the original context
    over ``low_freq_factor``) by ``factor``, leaves the fast ones, and blends in between.
    """
    exponent = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
    speed = (1.0 / np.float32(config.rope_theta) ** exponent).astype(np.float32)
    scaling = config.rope_scaling
    if scaling is None:
        return speed
    turns = scaling.original_max_position_embeddings * speed / (2 * np.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return ((1 - blend) * speed / scaling.factor + blend * speed).astype(np.float32)


def rope_angles(
    config: ModelConfig, positions: Int[Array, "B N"]
) -> tuple[Float[Array, "B N d2"], Float[Array, "B N d2"]]:
    """Return the cosine and sine of every position's rotation, in float32."""
    speed = jnp.asarray(inverse_frequencies(config))
    angle = positions[:, :, None].astype(jnp.float32) * speed[None, None]
    return jnp.cos(angle), jnp.sin(angle)
