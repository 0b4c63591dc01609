"""The decoder, declared: one nnx module whose variations are facts of ``ModelConfig``.

Attribute paths follow Hugging Face's names. Modules compute and never assign.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from specjax import ops
from specjax.config import ModelConfig
from specjax.models.experts import Mixture
from specjax.models.latent import LatentAttention
from specjax.models.parts import MLP, Embedding, Linear, Norm, pick_one
from specjax.models.rope import rope_angles
from specjax.topology import attention_mask
from specjax.types import Cache, Output


class Attention(nnx.Module):
    """Grouped-query attention over the cache; ``inputs`` vectors are read side by side."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, inputs: int = 1):
        self.head_dim, self.joined = config.head_dim, config.joined
        wide, narrow = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        size, bias, dtype = config.hidden_size, config.qkv_bias, config.dtype
        self.sizes = wide, narrow

        def linear(size_out: int) -> Linear:
            return Linear(inputs * size, size_out, bias=bias, dtype=dtype, rngs=rngs)

        if config.joined:
            self.qkv_proj = linear(wide + 2 * narrow)
        else:
            self.q_proj, self.k_proj, self.v_proj = linear(wide), linear(narrow), linear(narrow)
        self.o_proj = Linear(wide, size, bias=config.output_bias, dtype=dtype, rngs=rngs)
        self.q_norm = Norm(config, config.head_dim) if config.qk_norm else None
        self.k_norm = Norm(config, config.head_dim) if config.qk_norm else None

    def write(self, x, angles, keys, values, slots):
        """Put the nodes' keys and values into the cache; return it, and what ``read`` needs."""
        heads = (*x.shape[:2], -1, self.head_dim)
        if self.joined:
            wide, narrow = self.sizes
            x, k, v = jnp.split(self.qkv_proj(x), [wide, wide + narrow], axis=-1)
        else:
            k, v = self.k_proj(x), self.v_proj(x)
        k, v = k.reshape(heads), v.reshape(heads)
        if self.k_norm is not None:
            k = self.k_norm(k)
        if angles is not None:
            k = ops.rotate(k, *angles)
        return ops.write_kv(keys, k, slots), ops.write_kv(values, v, slots), x

    def read(self, x, angles, mask, keys, values):
        """Let nodes look at what the cache holds."""
        q = (x if self.joined else self.q_proj(x)).reshape(*x.shape[:2], -1, self.head_dim)
        if self.q_norm is not None:
            q = self.q_norm(q)
        if angles is not None:
            q = ops.rotate(q, *angles)
        window = mask.shape[2]
        mixed = ops.attention(q, keys[:, :, :window], values[:, :, :window], mask)
        return self.o_proj(mixed.reshape(*x.shape[:2], -1))


class Layer(nnx.Module):
    """One pre-norm transformer block; EAGLE's first has no norm before its attention."""

    def __init__(
        self, config: ModelConfig, *, rngs: nnx.Rngs, input_norm: bool = True, index: int = 0
    ):
        self.input_layernorm = Norm(config, config.hidden_size) if input_norm else None
        attention = LatentAttention if config.latent else Attention
        self.self_attn = attention(config, rngs=rngs)
        self.post_attention_layernorm = Norm(config, config.hidden_size)
        mixed = config.experts is not None and index >= config.experts.first_k_dense_replace
        self.mlp = (Mixture if mixed else MLP)(config, rngs=rngs)

    def __call__(self, x, angles, mask, keys, values, slots, only=None):
        read = x if self.input_layernorm is None else self.input_layernorm(x)
        keys, values, read = self.self_attn.write(read, angles, keys, values, slots)
        x, read, angles, mask = pick_one(only, (x, read, angles, mask))
        x = x + self.self_attn.read(read, angles, mask, keys, values)
        return x + self.mlp(self.post_attention_layernorm(x)), keys, values


def surroundings(
    config: ModelConfig,
    positions: Int[Array, "B N"],
    visible: Bool[Array, "B1 N M"],
    lengths: Int[Array, "B"],
    window: int,
    present: Bool[Array, "B N"] | None = None,
):
    """Return what every layer is told of its nodes: rotary angles, attention mask, slots."""
    angles = None
    if config.positions == "rope":
        # held as one array, or XLA computes sines and cosines anew inside every layer (reading 192
        # positions took 21.0 ms, 19.2 so): it drops barriers before it fuses, and then repeats
        # what has one operand, but no concatenation
        both = jnp.concatenate(rope_angles(config, positions), axis=-1)
        angles = jnp.split(jax.lax.optimization_barrier(both), 2, axis=-1)
    mask = attention_mask(lengths, visible, window)
    if present is not None:
        mask = ops.hide(mask, present)
    first = lengths + (visible.shape[2] - positions.shape[1])
    return angles, mask, first[:, None] + jnp.arange(positions.shape[1])[None]


class Decoder(nnx.Module):
    """Embed, pass the layers, normalise; the LM head is asked for separately."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        size, dtype = config.hidden_size, config.dtype
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, size, dtype=dtype, rngs=rngs)
        learned = config.positions == "learned"
        rows = config.max_position_embeddings + config.position_offset
        self.embed_positions = Embedding(rows, size, dtype=dtype, rngs=rngs) if learned else None
        self.layers = nnx.List(Layer(config, rngs=rngs, index=i) for i in range(config.num_layers))
        self.norm = Norm(config, size)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else Linear(size, config.vocab_size, bias=False, dtype=dtype, rngs=rngs)
        )

    def __call__(
        self,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        visible: Bool[Array, "B1 N M"],
        cache: Cache,
        window: int,
        taps: tuple[int, ...] = (),
        only: Int[Array, "B"] | None = None,
        present: Bool[Array, "B N"] | None = None,
    ) -> tuple[Output, Cache]:
        x = self.embed_tokens(tokens)
        if self.embed_positions is not None:
            x = x + self.embed_positions(positions + self.config.position_offset)
        if present is not None:
            x = ops.blank(x, present)
        angles, mask, slots = surroundings(
            self.config, positions, visible, cache.lengths, window, present
        )
        keys, values, stream = list(cache.keys), list(cache.values), [x]
        for i, layer in enumerate(self.layers):
            last = only if i == len(self.layers) - 1 else None
            x, keys[i], values[i] = layer(x, angles, mask, keys[i], values[i], slots, last)
            stream.append(x)
        stream[:-1] = pick_one(only, stream[:-1])
        tapped = [stream[i] for i in taps]
        empty = jnp.zeros((*x.shape[:2], 0, self.config.hidden_size), x.dtype)
        output = Output(self.norm(x), jnp.stack(tapped, axis=2) if tapped else empty)
        return output, cache._replace(keys=tuple(keys), values=tuple(values))

    def logits(self, hidden: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Score the vocabulary, in float32."""
        if self.lm_head is None:
            return ops.linear(hidden, self.embed_tokens.weight[...]).astype(jnp.float32)
        return self.lm_head(hidden).astype(jnp.float32)
