"""Draft ahead along a whole text at once: what a head will do, in training.

EAGLE-3's training-time test (Li et al. 2025, arXiv:2503.01840): after the first pass over
(token, feature) pairs, the head reads its own outputs in place of the target's features, one
step further each pass. A pair of pass s sees the first pass's pairs up to s places back, then
one pair of each later pass: what it would find in its cache after s drafts.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from specjax.config import FeatureConfig
from specjax.models.build import HeadConfig, build_feature_head, build_stages
from specjax.train.features import Features
from specjax.types import PyTree


class Drafted(NamedTuple):
    """The logits of drafts s places ahead: of the tokens after places s + 1 .. T - 1."""

    logits: Float[Array, "B P V"]
    features: Float[Array, "B P D"]  # that they were read from


def build_unrolled(config: HeadConfig, depth: int, layers: tuple[int, ...]) -> Callable:
    """Return (params, Features) -> one ``Drafted`` per position of the draft."""
    if isinstance(config, FeatureConfig):
        return unrolled_features(config, depth, layers)
    stages = build_stages(config)

    def run(params: PyTree, batch: Features) -> list[Drafted]:
        hidden, drafted = batch.hidden_states[:, :-1].astype(config.dtype), []
        rows, pairs, size = hidden.shape
        carry = stages.start(params, hidden.reshape(rows * pairs, size))
        for level in range(depth):
            follows = jnp.roll(batch.token_ids[:, 1:-1], -level, axis=1)
            carry, logits = stages.step(params, carry, follows.reshape(-1), level)
            real = (x.reshape(rows, pairs, -1)[:, : pairs - level] for x in (logits, carry))
            drafted.append(Drafted(*real))
        return drafted

    return run


def unrolled_features(config: FeatureConfig, depth: int, layers: tuple[int, ...]) -> Callable:
    """Return what ``build_unrolled`` does, for EAGLE, EAGLE-3 and MTP."""
    head, index = build_feature_head(config), [layers.index(layer) for layer in config.taps]

    def run(params: PyTree, batch: Features) -> list[Drafted]:
        wide = (batch.hidden_states, batch.taps[:, :, jnp.asarray(index, jnp.int32)])
        features = head.fuse(params, *(x.astype(config.block.dtype) for x in wide))[:, :-1]
        rows, pairs, size = features.shape
        tokens = batch.token_ids[:, 1:-1]
        positions = jnp.broadcast_to(jnp.arange(pairs, dtype=jnp.int32)[None], (rows, pairs))
        cache, drafted = head.init_cache(rows, depth * pairs), []
        for level in range(depth):
            visible, window = sees(pairs, level), (level + 1) * pairs
            after, cache = head.forward(params, tokens, features, positions, visible, cache, window)
            drafted.append(Drafted(head.logits(params, after[:, level:]), after[:, level:]))
            features = jnp.concatenate([jnp.zeros((rows, 1, size), after.dtype), after[:, :-1]], 1)
        return drafted

    return run


def sees(pairs: int, level: int) -> Bool[Array, "1 P M"]:
    """Mark what each pair of pass ``level`` sees of all passes up to it, side by side."""
    index = np.arange(pairs)
    back = index[:, None] - index[None]  # how far a pair lies behind
    blocks = [back >= level, *(back == level - i for i in range(1, level + 1))]
    return jnp.asarray(np.hstack(blocks)[None])
