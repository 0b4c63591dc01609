"""From facts to functions: a ``Target`` whose weights are an argument, never a closure."""

import functools

import jax
from flax import nnx

from specjax.cache import init_cache
from specjax.config import ModelConfig
from specjax.models.decoder import Decoder
from specjax.types import PyTree, Target


@functools.cache
def graph(config: ModelConfig) -> tuple[nnx.GraphDef, PyTree]:
    """Return the decoder's structure and the shapes of its weights, allocating nothing."""
    module = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(module)
    return graphdef, nnx.to_pure_dict(state)


def shapes(config: ModelConfig) -> PyTree:
    """Return the weights as a nested dict of ``jax.ShapeDtypeStruct``."""
    return graph(config)[1]


def init_params(config: ModelConfig, key: jax.Array) -> PyTree:
    """Draw fresh weights: a nested dict of arrays, matrices [out, in], std in ** -0.5."""

    def build(key):
        return nnx.to_pure_dict(nnx.split(Decoder(config, rngs=nnx.Rngs(key)))[1])

    return jax.jit(build)(key)


@functools.cache
def build_target(config: ModelConfig, taps: tuple[int, ...] = ()) -> Target:
    """Build the decoder's pure functions, one set per (config, tapped layers).

    ``forward(params, tokens [B, N], positions [B, N], visible [B or 1, N, M], cache, window)``
    writes nodes to cache slots ``lengths + (M - N) + i`` and does not advance the cache.
    ``logits(params, hidden [..., D])`` is float32 [..., V]. ``init_cache(batch_size,
    capacity)`` allocates. Tap i is the residual stream after i layers (0: the embeddings).
    """
    graphdef, _ = graph(config)

    def forward(params, tokens, positions, visible, cache, window):
        return nnx.merge(graphdef, params)(tokens, positions, visible, cache, window, taps)

    def logits(params, hidden):
        return nnx.merge(graphdef, params).logits(hidden)

    def allocate(batch_size, capacity):
        return init_cache(
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
            config.dtype,
            batch_size,
            capacity,
        )

    return Target(allocate, forward, logits, config.vocab_size, config.hidden_size)
