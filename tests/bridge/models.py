"""One tiny config of every architecture, with weights of which none is at rest."""

import dataclasses

import jax
import jax.numpy as jnp

from specjax.config import Llama3Scaling, ModelConfig
from specjax.models.build import init_params

BASE = ModelConfig(
    vocab_size=96, hidden_size=48, intermediate_size=80, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=16, max_position_embeddings=256, norm_eps=1e-2,
)  # fmt: skip
SCALING = Llama3Scaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)
CONFIGS = {
    "llama3": dataclasses.replace(BASE, rope_scaling=SCALING),
    "llama-biased": dataclasses.replace(BASE, qkv_bias=True, output_bias=True, mlp_bias=True),
    "mistral": dataclasses.replace(BASE, num_kv_heads=4, rope_theta=1e6),
    "qwen2-tied": dataclasses.replace(BASE, qkv_bias=True, tie_word_embeddings=True),
    "qwen3": dataclasses.replace(BASE, qk_norm=True),
    "opt": dataclasses.replace(
        BASE, norm="layer", positions="learned", position_offset=2, mlp="relu", qkv_bias=True,
        output_bias=True, mlp_bias=True, num_kv_heads=4, tie_word_embeddings=True,
    ),
}  # fmt: skip


def weights(config: ModelConfig):
    """Draw weights; norms and biases are drawn too."""
    leaves, tree = jax.tree.flatten(init_params(config, jax.random.key(0)))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [
        leaf if leaf.ndim > 1 else leaf + 0.3 * jax.random.normal(key, leaf.shape, leaf.dtype)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(tree, [jnp.asarray(leaf) for leaf in drawn])
