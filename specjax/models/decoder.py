"""The decoder as an nnx module, for all architectures that ``ModelConfig`` describes.

Attribute paths follow Hugging Face's names. Modules assign nothing when they are called.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from specjax.core import ops
from specjax.core.cache import slots_of
from specjax.core.delta import parents_of
from specjax.core.topology import attention_mask, ring_mask, sliding_mask
from specjax.core.types import Cache, NodeOrder, Output, Recurrent, Ring, Slots
from specjax.models.config import AttentionKind, ModelConfig, Rope
from specjax.models.delta_net import DeltaNet, Steps
from specjax.models.experts import Mixture
from specjax.models.latent import LatentAttention
from specjax.models.modules import MLP, Embedding, Linear, Norm, pick_one
from specjax.models.rope import Angles, rope_angles, turn


class Attention(nnx.Module):
    """Grouped-query attention over the cache; the input has ``inputs`` times the hidden size."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, inputs: int = 1, index: int = 0):
        self.head_dim, self.joined = config.head_dim, config.joined
        self.rope, self.scale = config.kind(index).rope, config.attention_scale
        self.gated = config.output_gate  # the gate lies behind each head's query
        wide, narrow = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        outputs, wide = wide, wide * (2 if self.gated else 1)
        size, bias, dtype = config.hidden_size, config.qkv_bias, config.dtype
        self.sizes = wide, narrow

        def linear(size_out: int) -> Linear:
            return Linear(inputs * size, size_out, bias=bias, dtype=dtype, rngs=rngs)

        if config.joined:
            self.qkv_proj = linear(wide + 2 * narrow)
        else:
            self.q_proj, self.k_proj, self.v_proj = linear(wide), linear(narrow), linear(narrow)
        self.o_proj = Linear(outputs, size, bias=config.output_bias, dtype=dtype, rngs=rngs)
        normed = config.qk_norm and not (config.qk_norm_last and self.rope is None)
        norm = functools.partial(Norm, config, config.head_dim, weighted=config.qk_norm_weight)
        self.q_norm, self.k_norm = (norm(), norm()) if normed else (None, None)
        self.norm_last = config.qk_norm_last
        self.sinks = nnx.Param(jnp.zeros(config.num_heads, dtype)) if config.sinks else None

    def turned(
        self, x: Float[Array, "B N H d"], norm: Norm | None, angles: Angles | None
    ) -> Float[Array, "B N H d"]:
        """Return queries or keys, normalised and turned by their positions."""
        if norm is not None and not self.norm_last:
            x = norm(x)
        if angles is not None and self.rope is not None:
            x = turn(self.rope, x, angles)
        return norm(x) if norm is not None and self.norm_last else x

    def write(
        self,
        x: Float[Array, "B N I"],
        angles: Angles | None,
        cache: Slots | Ring,
        slots: Int[Array, "B N"],
    ) -> tuple[Slots | Ring, Float[Array, "B N Q"]]:
        """Return the cache with the nodes' keys and values, and the input of ``read``."""
        heads = (*x.shape[:2], -1, self.head_dim)
        if self.joined:
            wide, narrow = self.sizes
            x, k, v = jnp.split(self.qkv_proj(x), [wide, wide + narrow], axis=-1)
        else:
            k, v = self.k_proj(x), self.v_proj(x)
        k, v = k.reshape(heads), v.reshape(heads)
        k = self.turned(k, self.k_norm, angles)
        return write_slots(cache, k, v, slots), x

    def read(
        self,
        x: Float[Array, "B N Q"],
        angles: Angles | None,
        mask: Bool[Array, "B N W"],
        cache: Slots | Ring,
        slots: Int[Array, "B M"],
    ) -> Float[Array, "B N D"]:
        """Return attention over the cache, projected back to the hidden size.

        ``slots`` are those that this pass has written.
        """
        q, gate = x if self.joined else self.q_proj(x), None
        if self.gated:
            q, gate = jnp.split(q.reshape(*x.shape[:2], -1, 2 * self.head_dim), 2, axis=-1)
        q = q.reshape(*x.shape[:2], -1, self.head_dim)
        q = self.turned(q, self.q_norm, angles)
        if angles is not None and angles.scale is not None:
            q = q * angles.scale[:, :, None, None].astype(q.dtype)
        if self.scale is not None:
            q = q * (self.scale * self.head_dim**0.5)  # ops.attention divides by this root
        window = mask.shape[2]
        keys, values = (leaf[:, :, :window] for leaf in cache)
        inputs, sinks = (q, keys, values, mask), None if self.sinks is None else self.sinks[...]
        if isinstance(cache, Ring):
            oldest = slots_of(cache, slots[:, -1] + 1)
            mixed = ops.ring_attention(*inputs, oldest, sinks)
        elif sinks is None:
            mixed = ops.attention(*inputs)
        else:
            mixed = ops.sink_attention(*inputs, sinks)
        if gate is not None:
            mixed = mixed * jax.nn.sigmoid(gate)
        return self.o_proj(mixed.reshape(*x.shape[:2], -1))


def write_slots(
    cache: Slots | Ring, keys: Float[Array, "B N KH d"], values: Float[Array, "B N KH e"],
    slots: Int[Array, "B N"],
) -> Slots | Ring:  # fmt: skip
    """Return the layer's cache with keys and values in the nodes' slots."""
    at = slots_of(cache, slots)
    return cache._replace(
        keys=ops.write_kv(cache.keys, keys, at), values=ops.write_kv(cache.values, values, at)
    )


class Layer(nnx.Module):
    """One pre-norm transformer block; EAGLE's first has no norm before its attention."""

    def __init__(
        self, config: ModelConfig, *, rngs: nnx.Rngs, input_norm: bool = True, index: int = 0
    ):
        size = config.hidden_size
        self.input_layernorm = Norm(config, size) if input_norm else None
        delta = config.kind(index).delta
        if delta is not None:
            self.linear_attn = DeltaNet(config, delta, rngs=rngs)
        else:
            attention = LatentAttention if config.latent else Attention
            self.self_attn = attention(config, rngs=rngs, index=index)
        self.attention_norm = Norm(config, size) if config.sandwich else None
        self.post_attention_layernorm = Norm(config, size)
        self.mlp = (Mixture if config.has_experts(index) else MLP)(config, rngs=rngs)
        self.mlp_norm = Norm(config, size) if config.sandwich else None

    def __call__(
        self,
        x: Float[Array, "B N D"],
        angles: Angles | None,
        mask: Bool[Array, "B N W"],
        cache: Slots | Ring | Recurrent,
        slots: Int[Array, "B N"],
        only: Int[Array, "B"] | None = None,
        steps: Steps | None = None,
    ) -> tuple[Float[Array, "B N1 D"], Slots | Ring | Recurrent]:
        """Return the block's output, of the nodes ``only`` if given, and the cache.

        A recurrent layer reads ``steps`` in place of angles, mask and slots.
        """
        read = x if self.input_layernorm is None else self.input_layernorm(x)
        if isinstance(cache, Recurrent):
            assert steps is not None
            cache, mixed = self.linear_attn(read, steps, cache)
            x, mixed = pick_one(only, (x, mixed))
        else:
            cache, read = self.self_attn.write(read, angles, cache, slots)
            x, read, angles, mask = pick_one(only, (x, read, angles, mask))
            mixed = self.self_attn.read(read, angles, mask, cache, slots)
        x = x + (mixed if self.attention_norm is None else self.attention_norm(mixed))
        out = self.mlp(self.post_attention_layernorm(x))
        return x + (out if self.mlp_norm is None else self.mlp_norm(out)), cache


def layer_inputs(
    config: ModelConfig,
    positions: Int[Array, "B N"],
    visible: Bool[Array, "B1 N M"],
    cache: Cache,
    window: int,
    present: Bool[Array, "B N"] | None = None,
) -> tuple[list[tuple[Angles | None, Bool[Array, "B N W"]]], Int[Array, "B N"]]:
    """Return what positions do and the attention mask for each layer, and the nodes' cache slots.

    Layers of one kind share arrays.
    """
    kinds, lengths = [config.kind(layer) for layer in range(config.num_layers)], cache.lengths
    first = lengths + (visible.shape[2] - positions.shape[1])
    everything = attention_mask(lengths, visible, window)

    def seen(width: int | None, chunked: bool, size: int | None) -> Bool[Array, "B N W"]:
        if width is None:
            mask = everything
        elif size is None:
            mask = sliding_mask(everything, positions, first, width, chunked=chunked)
        else:
            mask = ring_mask(lengths, visible, positions, width, size, chunked)
        return mask if present is None else ops.hide(mask, present)

    sizes = [one.keys.shape[2] if isinstance(one, Ring) else None for one in cache.layers]
    windows = [(one.window, one.chunked, size) for one, size in zip(kinds, sizes, strict=True)]
    masks = {each: seen(*each) for each in dict.fromkeys(windows)}
    ropes = dict.fromkeys(kind.rope for kind in kinds)
    turns = {rope: shared_angles(config, rope, positions) for rope in ropes}
    each = [
        (with_scale(turns[kind.rope], kind, positions), masks[at])
        for kind, at in zip(kinds, windows, strict=True)
    ]
    return each, first[:, None] + jnp.arange(positions.shape[1])[None]


def node_steps(
    visible: Bool[Array, "B1 N N"],
    tokens: Int[Array, "B N"],
    present: Bool[Array, "B N"] | None,
    order: NodeOrder,
) -> Steps:
    """Return the steps of recurrent layers, from the nodes' ancestors."""
    parents = jnp.broadcast_to(parents_of(visible), tokens.shape)
    return Steps(order, parents, jnp.ones(tokens.shape, bool) if present is None else present)


def shared_angles(
    config: ModelConfig, rope: Rope | None, positions: Int[Array, "B N"]
) -> Angles | None:
    """Return angles that are computed once for all layers.

    They are one array, or XLA computes sines and cosines again in every layer (192 positions took
    21.0 ms to read, 19.2 so): it drops barriers before it fuses, and then duplicates ops of one
    operand, but not a concatenation.
    """
    if rope is None:
        return None
    both = jnp.concatenate(rope_angles(rope, config.head_dim, positions), axis=-1)
    return Angles(*jnp.split(jax.lax.optimization_barrier(both), 2, axis=-1))


def with_scale(
    angles: Angles | None, kind: AttentionKind, positions: Int[Array, "B N"]
) -> Angles | None:
    """Return a layer's angles with the scale of its queries, where it has one."""
    if kind.query_scale is None:
        return angles
    facts = kind.query_scale
    times = jnp.floor((positions + 1).astype(jnp.float32) / facts.every)
    scale = 1 + facts.scale * jnp.log1p(times)
    return Angles(None, None, scale) if angles is None else angles._replace(scale=scale)


class Decoder(nnx.Module):
    """Embedding, layers and final norm; the LM head is applied by ``logits``."""

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
        order: NodeOrder = "tree",
    ) -> tuple[Output, Cache]:
        """Run the layers over N nodes per row (``types.Forward``)."""
        x = self.embed_tokens(tokens)
        if self.config.embed_scale != 1:
            x = x * jnp.asarray(self.config.embed_scale, x.dtype)
        if self.embed_positions is not None:
            x = x + self.embed_positions(positions + self.config.position_offset)
        if present is not None:
            x = ops.blank(x, present)
        each, slots = layer_inputs(self.config, positions, visible, cache, window, present)
        steps = node_steps(visible, tokens, present, order) if self.config.recurrent else None
        layers, stream = list(cache.layers), [x]
        for i, layer in enumerate(self.layers):
            last = only if i == len(self.layers) - 1 else None
            x, layers[i] = layer(x, *each[i], layers[i], slots, last, steps)
            stream.append(x)
        stream[:-1] = pick_one(only, stream[:-1])
        tapped = [stream[i] for i in taps]
        empty = jnp.zeros((*x.shape[:2], 0, self.config.hidden_size), x.dtype)
        output = Output(self.norm(x), jnp.stack(tapped, axis=2) if tapped else empty)
        return output, cache._replace(layers=tuple(layers))

    def logits(self, hidden: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Return float32 logits."""
        if self.lm_head is None:
            logits = ops.linear(hidden, self.embed_tokens.weight[...]).astype(jnp.float32)
        else:
            logits = self.lm_head(hidden).astype(jnp.float32)
        cap = self.config.logit_cap
        return logits if cap is None else jnp.tanh(logits / cap) * cap
