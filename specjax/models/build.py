"""From facts to functions: a ``Target`` whose weights are an argument, never a closure."""

import functools

import jax
from flax import nnx

from specjax.cache import init_cache
from specjax.config import FeatureConfig, MedusaConfig, ModelConfig, SpeculatorConfig
from specjax.models import heads
from specjax.models.decoder import Decoder
from specjax.types import Cache, FeatureHead, PyTree, Stages, Target

HeadConfig = FeatureConfig | MedusaConfig | SpeculatorConfig
FEATURE_HEADS = {"eagle": heads.Eagle, "eagle3": heads.Eagle3, "mtp": heads.Mtp}


def declare(config: ModelConfig | HeadConfig, rngs: nnx.Rngs) -> nnx.Module:
    """Make the module that a config describes."""
    if isinstance(config, ModelConfig):
        return Decoder(config, rngs=rngs)
    if isinstance(config, FeatureConfig):
        return FEATURE_HEADS[config.kind](config, rngs=rngs)
    if isinstance(config, MedusaConfig):
        return heads.Medusa(config, rngs=rngs)
    return heads.Speculator(config, rngs=rngs)


@functools.cache
def graph(config: ModelConfig | HeadConfig) -> tuple[nnx.GraphDef, PyTree]:
    """Return a module's structure and the shapes of its weights, allocating nothing."""
    module = nnx.eval_shape(lambda: declare(config, nnx.Rngs(0)))
    graphdef, state = nnx.split(module)
    return graphdef, nnx.to_pure_dict(state)


def shapes(config: ModelConfig | HeadConfig) -> PyTree:
    """Return the weights as a nested dict of ``jax.ShapeDtypeStruct``."""
    return graph(config)[1]


def init_params(config: ModelConfig | HeadConfig, key: jax.Array) -> PyTree:
    """Draw fresh weights: a nested dict of arrays, matrices [out, in], std in ** -0.5.

    One by one: a program that draws them all takes seconds to compile, for every config anew.
    """
    return nnx.to_pure_dict(nnx.split(declare(config, nnx.Rngs(key)))[1])


@functools.cache
def build_target(config: ModelConfig, taps: tuple[int, ...] = ()) -> Target:
    """Build the decoder's pure functions, one set per (config, tapped layers).

    ``forward(params, tokens [B, N], positions [B, N], visible [B or 1, N, M], cache, window)``
    writes nodes to cache slots ``lengths + (M - N) + i`` and does not advance the cache.
    ``logits(params, hidden [..., D])`` is float32 [..., V]. ``init_cache(batch_size,
    capacity)`` allocates. Tap i is the residual stream after i layers (0: the embeddings).
    """
    graphdef, _ = graph(config)

    def forward(params, tokens, positions, visible, cache, window, only=None, present=None):
        decoder = nnx.merge(graphdef, params)
        return decoder(tokens, positions, visible, cache, window, taps, only, present)

    def logits(params, hidden):
        return nnx.merge(graphdef, params).logits(hidden)

    allocate = functools.partial(cache_of, config)
    return Target(allocate, forward, logits, config.vocab_size, config.hidden_size, config.dtype)


def cache_of(config: ModelConfig, batch_size: int, capacity: int) -> Cache:
    """Allocate what a stack of layers writes to."""
    latent = config.latent
    head_dims = (config.head_dim, config.head_dim)
    if latent is not None:
        head_dims = (latent.kv_lora_rank + latent.qk_rope_head_dim, 0)
    return init_cache(
        config.num_layers,
        config.num_kv_heads,
        head_dims,
        config.cache_dtype or config.dtype,
        batch_size,
        capacity,
    )


@functools.cache
def build_feature_head(config: FeatureConfig) -> FeatureHead:
    """Build an EAGLE, EAGLE-3 or MTP head's pure functions."""
    graphdef, _ = graph(config)

    def fuse(params, hidden, taps):
        return nnx.merge(graphdef, params).fuse(hidden, taps)

    def forward(
        params, tokens, features, positions, visible, cache, window, only=None, present=None
    ):
        head = nnx.merge(graphdef, params)
        return head(tokens, features, positions, visible, cache, window, only, present)

    def logits(params, features):
        return nnx.merge(graphdef, params).logits(features)

    allocate = functools.partial(cache_of, config.block)
    size, dtype = config.block.hidden_size, config.block.dtype
    return FeatureHead(allocate, fuse, forward, logits, size, dtype)


@functools.cache
def build_stages(config: MedusaConfig | SpeculatorConfig) -> Stages:
    """Build the pure functions of Medusa's heads or of an MLP speculator."""
    graphdef, _ = graph(config)

    def start(params, hidden):
        return nnx.merge(graphdef, params).start(hidden)

    def step(params, carry, token, stage):
        return nnx.merge(graphdef, params)(carry, token, stage)

    return Stages(start, step, config.vocab_size, config.hidden_size, config.dtype)
