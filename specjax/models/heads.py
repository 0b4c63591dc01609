"""Heads on a target's hidden states, declared: EAGLE, EAGLE-3, MTP, Medusa, MLP speculator.

The first three extrapolate features: ``fuse`` turns what the target shows into features
[B, N, D], and a call reads pairs of (token, feature before it) and returns the next features,
from which ``logits`` scores the vocabulary. Embedding and LM head may be the target's arrays.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from specjax import ops
from specjax.config import FeatureConfig, MedusaConfig, ModelConfig, SpeculatorConfig
from specjax.models.decoder import Attention, Layer, surroundings
from specjax.models.parts import MLP, Embedding, Linear, Norm, pick_one
from specjax.sampling import FORBIDDEN
from specjax.types import Cache


def through(
    layers, x, config: ModelConfig, positions, visible, cache: Cache, window: int, only, present
):
    """Pass x through a head's blocks, whose keys and values go to the cache.

    With ``only`` [B] that node of each row comes out of the last one: the others' keys and values
    are all that later passes need of them. Nodes that are not ``present`` are padding.
    """
    if present is not None:
        x = jax.tree.map(lambda leaf: ops.blank(leaf, present), x)
    angles, mask, slots = surroundings(config, positions, visible, cache.lengths, window, present)
    keys, values = list(cache.keys), list(cache.values)
    for i, layer in enumerate(layers):
        last = only if i == len(layers) - 1 else None
        x, keys[i], values[i] = layer(x, angles, mask, keys[i], values[i], slots, last)
    return x, cache._replace(keys=tuple(keys), values=tuple(values))


class Eagle(nnx.Module):
    """EAGLE (Li et al. 2024, arXiv:2401.15077): ``fc`` joins both, blocks, no final norm."""

    def __init__(self, config: FeatureConfig, *, rngs: nnx.Rngs):
        self.config, block = config, config.block
        size, facts = block.hidden_size, {"dtype": block.dtype, "rngs": rngs}
        self.embed_tokens = Embedding(block.vocab_size, size, **facts)
        self.fc = Linear(2 * size, size, bias=False, **facts)
        self.layers = nnx.List(
            Layer(block, rngs=rngs, input_norm=i > 0) for i in range(block.num_layers)
        )
        self.lm_head = Linear(size, block.vocab_size, bias=False, **facts)

    def fuse(self, hidden: Float[Array, "B N D"], taps) -> Float[Array, "B N D"]:
        return hidden

    def __call__(
        self,
        tokens: Int[Array, "B N"],
        features: Float[Array, "B N D"],
        positions: Int[Array, "B N"],
        visible: Bool[Array, "B1 N M"],
        cache: Cache,
        window: int,
        only: Int[Array, "B"] | None = None,
        present: Bool[Array, "B N"] | None = None,
    ) -> tuple[Float[Array, "B N1 D"], Cache]:
        x = self.fc(jnp.concatenate([self.embed_tokens(tokens), features], axis=-1))
        where = positions, visible, cache, window, only, present
        return through(self.layers, x, self.config.block, *where)

    def logits(self, features: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        return self.lm_head(features).astype(jnp.float32)


class Wide(nnx.Module):
    """EAGLE-3's block: its attention reads [embedding ; feature], the residual the feature."""

    def __init__(self, config: FeatureConfig, *, rngs: nnx.Rngs):
        block, self.config = config.block, config
        self.input_layernorm = Norm(block, block.hidden_size)
        self.hidden_norm = Norm(block, block.hidden_size)
        self.self_attn = Attention(block, rngs=rngs, inputs=2)
        self.post_attention_layernorm = Norm(block, block.hidden_size)
        self.mlp = MLP(block, rngs=rngs)

    def __call__(self, pair, angles, mask, keys, values, slots, only=None):
        embedding, feature = pair
        normed = self.hidden_norm(feature)
        read = jnp.concatenate([self.input_layernorm(embedding), normed], axis=-1)
        keys, values, read = self.self_attn.write(read, angles, keys, values, slots)
        x = normed if self.config.norm_before_residual else feature
        x, read, angles, mask = pick_one(only, (x, read, angles, mask))
        x = x + self.self_attn.read(read, angles, mask, keys, values)
        return x + self.mlp(self.post_attention_layernorm(x)), keys, values


class Eagle3(nnx.Module):
    """EAGLE-3 (Li et al. 2025, arXiv:2503.01840): features are made of tapped layers."""

    def __init__(self, config: FeatureConfig, *, rngs: nnx.Rngs):
        self.config, block = config, config.block
        size, facts = block.hidden_size, {"dtype": block.dtype, "rngs": rngs}
        wide = len(config.taps) * config.target_size
        self.embed_tokens = Embedding(block.vocab_size, size, **facts)
        self.input_norm = Norm(block, wide) if config.norm_before_fc else None
        each = (Norm(block, config.target_size) for _ in config.taps)
        self.fc_norm = nnx.List(each) if config.fc_norm else None
        self.fc = Linear(wide, size, bias=False, **facts)
        self.midlayer = Wide(config, rngs=rngs)
        self.norm = Norm(block, size)
        rows = config.draft_vocab_size or block.vocab_size
        self.lm_head = Linear(size, rows, bias=False, **facts)
        reduced = config.draft_vocab_size is not None  # then each token's row, or one past the last
        self.say = nnx.Param(jnp.zeros(block.vocab_size, jnp.int32)) if reduced else None

    def fuse(self, hidden, taps: Float[Array, "B N A E"]) -> Float[Array, "B N D"]:
        joined = taps.reshape(*taps.shape[:2], -1)
        if self.input_norm is not None:
            joined = self.input_norm(joined)
        if self.fc_norm is not None:
            parts = jnp.split(joined, len(self.config.taps), axis=-1)
            parts = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            joined = jnp.concatenate(parts, axis=-1)
        return self.fc(joined)

    def __call__(
        self, tokens, features, positions, visible, cache: Cache, window: int, only=None,
        present=None,
    ):  # fmt: skip
        pair = self.embed_tokens(tokens), features
        where = positions, visible, cache, window, only, present
        x, cache = through([self.midlayer], pair, self.config.block, *where)
        return (self.norm(x) if self.config.norm_output else x), cache

    def logits(self, features: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        normed = features if self.config.norm_output else self.norm(features)
        return spread(self.lm_head(normed), self.say)


def spread(own: Float[Array, "*lead R"], say: nnx.Param | None) -> Float[Array, "*lead V"]:
    """Score the whole vocabulary, in float32, from the rows that a reduced one has.

    ``say`` is each token's row, or one past the last for a token that has none.
    """
    own = own.astype(jnp.float32)
    if say is None:
        return own
    return jnp.take(own, say[...], axis=-1, mode="fill", fill_value=FORBIDDEN)


class Mtp(nnx.Module):
    """A multi-token prediction layer (DeepSeek-V3, arXiv:2412.19437; MiMo, arXiv:2505.07608).

    It never reads the embedding at position 0, and its output is normed. MiMo's is given the
    target's last layer before the final norm, as a tap; DeepSeek's what comes after it.
    """

    def __init__(self, config: FeatureConfig, *, rngs: nnx.Rngs):
        self.config, block = config, config.block
        size, facts = block.hidden_size, {"dtype": block.dtype, "rngs": rngs}
        self.embed_tokens = Embedding(block.vocab_size, size, **facts)
        self.enorm, self.hnorm = Norm(block, size), Norm(block, size)
        self.eh_proj = Linear(2 * size, size, bias=False, **facts)
        self.block = Layer(block, rngs=rngs)
        self.norm = Norm(block, size)
        self.lm_head = Linear(size, block.vocab_size, bias=False, **facts)

    def fuse(self, hidden: Float[Array, "B N D"], taps) -> Float[Array, "B N D"]:
        return taps[:, :, 0] if self.config.taps else hidden

    def __call__(
        self, tokens, features, positions, visible, cache: Cache, window: int, only=None,
        present=None,
    ):  # fmt: skip
        embedding = jnp.where(positions[:, :, None] == 0, 0, self.embed_tokens(tokens))
        pair = [self.enorm(embedding), self.hnorm(features)]
        x = self.eh_proj(jnp.concatenate(pair[:: -1 if self.config.hidden_first else 1], axis=-1))
        where = positions, visible, cache, window, only, present
        x, cache = through([self.block], x, self.config.block, *where)
        return self.norm(x), cache

    def logits(self, features: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        return self.lm_head(features).astype(jnp.float32)


class Residual(nnx.Module):
    """Medusa's block: x + SiLU(W x), some times over."""

    def __init__(self, config: MedusaConfig, *, rngs: nnx.Rngs):
        size = config.hidden_size
        self.layers = nnx.List(
            Linear(size, size, bias=config.bias, dtype=config.dtype, rngs=rngs)
            for _ in range(config.num_layers)
        )

    def __call__(self, x: Float[Array, "B D"]) -> Float[Array, "B D"]:
        for layer in self.layers:
            x = x + jax.nn.silu(layer(x))
        return x


class Medusa(nnx.Module):
    """Medusa (Cai et al. 2024, arXiv:2401.10774): head i names the token i + 2 places on."""

    def __init__(self, config: MedusaConfig, *, rngs: nnx.Rngs):
        facts = {"bias": False, "dtype": config.dtype, "rngs": rngs}
        self.shared_head = config.shared_head
        self.blocks = nnx.List(Residual(config, rngs=rngs) for _ in range(config.num_heads))
        rows = config.draft_vocab_size or config.vocab_size
        self.lm_heads = nnx.List(
            Linear(config.hidden_size, rows, **facts)
            for _ in range(1 if config.shared_head else config.num_heads)
        )
        reduced = config.draft_vocab_size is not None
        self.say = nnx.Param(jnp.zeros(config.vocab_size, jnp.int32)) if reduced else None

    def start(self, hidden: Float[Array, "B D"]) -> Float[Array, "B D"]:
        return hidden

    def __call__(
        self, hidden: Float[Array, "B D"], token, stage: int
    ) -> tuple[Float[Array, "B D"], Float[Array, "B V"]]:
        lm_head = self.lm_heads[0 if self.shared_head else stage]
        return hidden, spread(lm_head(self.blocks[stage](hidden)), self.say)


class Stage(nnx.Module):
    """One step of the MLP speculator."""

    def __init__(self, config: SpeculatorConfig, size_in: int, *, rngs: nnx.Rngs):
        facts = {"dtype": config.dtype, "rngs": rngs}
        self.emb = Embedding(config.vocab_size, config.inner_size, **facts)
        self.proj = Linear(size_in, config.inner_size, bias=False, **facts)
        self.head = Linear(config.inner_size, config.vocab_size, bias=False, **facts)
        self.ln = nnx.Dict(
            weight=nnx.Param(jnp.ones(config.inner_size, config.dtype)),
            bias=nnx.Param(jnp.zeros(config.inner_size, config.dtype)),
        )


class Speculator(nnx.Module):
    """The MLP speculator (Wertheimer et al. 2024, arXiv:2404.19124).

    The state starts as the target's hidden state and takes in one token per stage; the two
    weights keep its variance where it is.
    """

    def __init__(self, config: SpeculatorConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.stages = nnx.List(
            Stage(config, config.inner_size if i else config.hidden_size, rngs=rngs)
            for i in range(config.num_stages)
        )

    def start(self, hidden: Float[Array, "B D"]) -> Float[Array, "B D"]:
        if not self.config.scale_input:
            return hidden
        return ops.rms_norm(hidden, jnp.ones(hidden.shape[-1], hidden.dtype), 1e-6) / math.sqrt(2)

    def __call__(
        self, state: Float[Array, "B D"], token: Int[Array, "B"], stage: int
    ) -> tuple[Float[Array, "B I"], Float[Array, "B V"]]:
        """Take in the token after the state; return the next state and the logits it gives."""
        parts, size = self.stages[stage], self.config.inner_size
        keep = 0.5 ** (0.5 / self.config.num_stages)
        take = math.sqrt((1 - keep**2) * size / 2)
        state = parts.proj(state) + take / keep * parts.emb(token)
        state = ops.rms_norm(state, parts.ln["weight"][...], 1e-6) + parts.ln["bias"][...][None]
        state = jax.nn.gelu(state, approximate=False)
        return state, parts.head(state).astype(jnp.float32)
