"""Build targets and drafting heads from configs: pure functions whose weights are an argument."""

import functools

import jax
from flax import nnx

from specjax.core.cache import RING_ROOM, init_cache, init_recurrent, init_ring, init_slots
from specjax.core.types import (
    BlockHead,
    Cache,
    FeatureHead,
    PyTree,
    Recurrent,
    Ring,
    Slots,
    Stages,
    Target,
)
from specjax.models import heads
from specjax.models.config import (
    AttentionKind,
    BlockConfig,
    FeatureConfig,
    LstmConfig,
    MedusaConfig,
    ModelConfig,
    SpeculatorConfig,
)
from specjax.models.decoder import Decoder
from specjax.models.dflash import DFlash
from specjax.models.lstm_speculator import LstmSpeculator

HeadConfig = FeatureConfig | BlockConfig | MedusaConfig | SpeculatorConfig | LstmConfig
FEATURE_HEADS = {"eagle": heads.Eagle, "eagle3": heads.Eagle3, "mtp": heads.Mtp}


def most_drafted(config: HeadConfig) -> int | None:
    """Return how many tokens a head with a stage for each can draft; None: it has no stages."""
    if isinstance(config, MedusaConfig):
        return config.num_heads
    return config.num_stages if isinstance(config, SpeculatorConfig | LstmConfig) else None


def declare(config: ModelConfig | HeadConfig, rngs: nnx.Rngs) -> nnx.Module:
    """Return the nnx module of a config."""
    if isinstance(config, ModelConfig):
        return Decoder(config, rngs=rngs)
    if isinstance(config, FeatureConfig):
        return FEATURE_HEADS[config.kind](config, rngs=rngs)
    if isinstance(config, BlockConfig):
        return DFlash(config, rngs=rngs)
    if isinstance(config, MedusaConfig):
        return heads.Medusa(config, rngs=rngs)
    if isinstance(config, LstmConfig):
        return LstmSpeculator(config, rngs=rngs)
    return heads.Speculator(config, rngs=rngs)


@functools.cache
def graph(config: ModelConfig | HeadConfig) -> tuple[nnx.GraphDef, PyTree]:
    """Return a module's graphdef and the shapes of its weights, without allocating them."""
    module = nnx.eval_shape(lambda: declare(config, nnx.Rngs(0)))
    graphdef, state = nnx.split(module)
    return graphdef, nnx.to_pure_dict(state)


def shapes(config: ModelConfig | HeadConfig) -> PyTree:
    """Return the weights as a nested dict of ``jax.ShapeDtypeStruct``."""
    return graph(config)[1]


def init_params(config: ModelConfig | HeadConfig, key: jax.Array) -> PyTree:
    """Return random weights: a nested dict of arrays, matrices [out, in], std in ** -0.5.

    Each is drawn by a program of its own: one for all takes seconds to compile for each config.
    """
    return nnx.to_pure_dict(nnx.split(declare(config, nnx.Rngs(key)))[1])


@functools.cache
def build_target(
    config: ModelConfig, taps: tuple[int, ...] = (), ring_room: int = RING_ROOM
) -> Target:
    """Return a decoder as a ``Target``; cached, so that it is compiled once.

    Args:
        config: of the decoder.
        taps: layers whose hidden states ``forward`` returns: i is the residual stream after i
            layers, 0 the embeddings.
        ring_room: how many positions a sliding-window layer's cache holds beyond the window.
    """
    graphdef, _ = graph(config)

    def forward(
        params, tokens, positions, visible, cache, window, only=None, present=None, order="tree"
    ):
        decoder = nnx.merge(graphdef, params)
        return decoder(tokens, positions, visible, cache, window, taps, only, present, order)

    def logits(params, hidden):
        return nnx.merge(graphdef, params).logits(hidden)

    allocate = functools.partial(cache_of, config, ring_room=ring_room)
    return Target(allocate, forward, logits, config.vocab_size, config.hidden_size, config.dtype)


def cache_of(
    config: ModelConfig, batch_size: int, capacity: int, ring_room: int = RING_ROOM
) -> Cache:
    """Return an empty cache for the layers of a config.

    A sliding-window layer holds its window and ``ring_room`` positions, if that is less than all.
    """
    latent = config.latent
    head_dims = (config.head_dim, config.head_dim)
    if latent is not None:
        indexed = 0 if latent.indexer is None else latent.indexer.head_dim
        head_dims = (latent.kv_lora_rank + latent.qk_rope_head_dim, indexed)
    facts = config.num_kv_heads, head_dims, config.cache_dtype or config.dtype

    def layer(kind: AttentionKind) -> Slots | Ring | Recurrent:
        delta = kind.delta
        if delta is None:
            size = capacity if kind.window is None or latent else kind.window + ring_room
            if size < capacity:
                return init_ring(*facts, batch_size, size)
            return init_slots(*facts, batch_size, capacity)
        state = delta.num_value_heads, delta.key_head_dim, delta.value_head_dim
        tail = delta.conv_kernel - 1, delta.channels
        return init_recurrent(state, tail, config.dtype, batch_size)

    kinds = map(config.kind, range(config.num_layers))
    return init_cache(map(layer, kinds), batch_size)


@functools.cache
def build_feature_head(config: FeatureConfig) -> FeatureHead:
    """Return an EAGLE, EAGLE-3 or MTP head as functions; cached, so that it is compiled once."""
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

    def mask_features(params):
        return nnx.merge(graphdef, params).mask_features()

    return FeatureHead(
        functools.partial(cache_of, config.block), fuse, forward, logits,
        config.block.hidden_size, config.block.dtype,
        None if config.mask_token_id is None else mask_features, config.mask_token_id,
    )  # fmt: skip


@functools.cache
def build_block_head(config: BlockConfig) -> BlockHead:
    """Return a DFlash or DSpark head as functions; cached, so that it is compiled once."""
    graphdef, _ = graph(config)

    def remember(params, taps, positions, cache):
        return nnx.merge(graphdef, params).remember(taps, positions, cache)

    def forward(params, tokens, positions, visible, places, cache, window):
        head = nnx.merge(graphdef, params)
        return head(tokens, positions, visible, places, cache, window)

    def logits(params, hidden):
        return nnx.merge(graphdef, params).logits(hidden)

    def follow(params, tokens):
        return nnx.merge(graphdef, params).follow(tokens)

    def confidence(params, hidden, before):
        return nnx.merge(graphdef, params).confidence(hidden, before)

    return BlockHead(
        functools.partial(cache_of, config.block), remember, forward, logits,
        follow if config.markov_rank else None,
        None if config.confidence == "none" else confidence,
        config.mask_token_id, config.sample_from_anchor,
    )  # fmt: skip


@functools.cache
def build_stages(config: MedusaConfig | SpeculatorConfig | LstmConfig) -> Stages:
    """Return Medusa's heads or a speculator as functions, a stage per draft token; cached."""
    graphdef, _ = graph(config)

    def start(params, hidden):
        return nnx.merge(graphdef, params).start(hidden)

    def step(params, carry, token, stage):
        return nnx.merge(graphdef, params)(carry, token, stage)

    def at_once(params, carry, depth):
        return nnx.merge(graphdef, params).at_once(carry, depth)

    parallel = at_once if isinstance(config, MedusaConfig) else None
    return Stages(start, step, config.vocab_size, config.hidden_size, config.dtype, parallel)
