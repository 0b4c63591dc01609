"""Drafting heads on a target's hidden states: EAGLE, EAGLE-3, MTP, Medusa, MLP speculator.

The first three predict features: ``fuse`` makes features [B, N, D] of the target's hidden states,
a call reads pairs of (token, feature before it) and returns the next features, and ``logits``
applies the LM head to them. Embedding and LM head may be the target's arrays.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from specjax.core import ops
from specjax.core.sampling import FORBIDDEN
from specjax.core.types import Cache, PyTree, Ring, Slots
from specjax.models.config import FeatureConfig, MedusaConfig, ModelConfig, SpeculatorConfig
from specjax.models.decoder import Attention, Layer, layer_inputs
from specjax.models.latent import LatentAttention
from specjax.models.modules import MLP, Embedding, Linear, Norm, noise, pick_one
from specjax.models.rope import Angles


def run_blocks(
    layers: Sequence[Any],
    x: PyTree,
    config: ModelConfig,
    positions: Int[Array, "B N"],
    visible: Bool[Array, "B1 N M"],
    cache: Cache,
    window: int,
    only: Int[Array, "B"] | None,
    present: Bool[Array, "B N"] | None,
) -> tuple[Float[Array, "B N1 D"], Cache]:
    """Return the output of a head's blocks, and the cache with their keys and values.

    With ``only`` the output is that node's of each row. Nodes that are not ``present`` are padding.
    """
    if present is not None:
        x = jax.tree.map(lambda leaf: ops.blank(leaf, present), x)
    each, slots = layer_inputs(config, positions, visible, cache, window, present)
    caches = list(cache.layers)
    for i, layer in enumerate(layers):
        last = only if i == len(layers) - 1 else None
        x, caches[i] = layer(x, *each[i], caches[i], slots, last)
    return x, cache._replace(layers=tuple(caches))


class Eagle(nnx.Module):
    """EAGLE (Li et al. 2024, arXiv:2401.15077): ``fc`` of both inputs, blocks, no final norm."""

    def __init__(self, config: FeatureConfig, *, rngs: nnx.Rngs):
        self.config, block = config, config.block
        size, facts = block.hidden_size, {"dtype": block.dtype, "rngs": rngs}
        self.embed_tokens = Embedding(block.vocab_size, size, **facts)
        self.fc = Linear(2 * size, size, bias=False, **facts)
        self.layers = nnx.List(
            Layer(block, rngs=rngs, input_norm=i > 0, index=i) for i in range(block.num_layers)
        )
        self.lm_head = Linear(size, block.vocab_size, bias=False, **facts)

    def fuse(
        self, hidden: Float[Array, "B N D"], taps: Float[Array, "B N A E"]
    ) -> Float[Array, "B N D"]:
        """Return the target's last hidden states."""
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
        """Return the next features and the head's cache (``types.ForwardHead``)."""
        x = self.fc(jnp.concatenate([self.embed_tokens(tokens), features], axis=-1))
        where = positions, visible, cache, window, only, present
        return run_blocks(self.layers, x, self.config.block, *where)

    def logits(self, features: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Return float32 logits of the target's vocabulary."""
        return self.lm_head(features).astype(jnp.float32)


class Eagle3Layer(nnx.Module):
    """EAGLE-3's block: attention reads [embedding ; feature], the residual is the feature."""

    def __init__(self, config: FeatureConfig, *, rngs: nnx.Rngs):
        block, self.config = config.block, config
        self.input_layernorm = Norm(block, block.hidden_size)
        self.hidden_norm = Norm(block, block.hidden_size)
        attention = LatentAttention if block.latent else Attention
        self.self_attn = attention(block, rngs=rngs, inputs=2)
        self.post_attention_layernorm = Norm(block, block.hidden_size)
        self.mlp = MLP(block, rngs=rngs)

    def __call__(
        self,
        pair: tuple[Float[Array, "B N D"], Float[Array, "B N D"]],
        angles: Angles | None,
        mask: Bool[Array, "B N W"],
        cache: Slots | Ring,
        slots: Int[Array, "B N"],
        only: Int[Array, "B"] | None = None,
    ) -> tuple[Float[Array, "B N1 D"], Slots | Ring]:
        """Return the block's output, of the nodes ``only`` if given, and the cache."""
        embedding, feature = pair
        normed = self.hidden_norm(feature)
        read = jnp.concatenate([self.input_layernorm(embedding), normed], axis=-1)
        cache, read = self.self_attn.write(read, angles, cache, slots)
        x = normed if self.config.norm_before_residual else feature
        x, read, angles, mask = pick_one(only, (x, read, angles, mask))
        x = x + self.self_attn.read(read, angles, mask, cache, slots)
        return x + self.mlp(self.post_attention_layernorm(x)), cache


class Eagle3(nnx.Module):
    """EAGLE-3 (Li et al. 2025, arXiv:2503.01840): features are made of tapped hidden states."""

    def __init__(self, config: FeatureConfig, *, rngs: nnx.Rngs):
        self.config, block = config, config.block
        size, facts = block.hidden_size, {"dtype": block.dtype, "rngs": rngs}
        wide = len(config.taps) * config.target_size
        self.embed_tokens = Embedding(block.vocab_size, size, **facts)
        self.input_norm = Norm(block, wide) if config.norm_before_fc else None
        each = (Norm(block, config.target_size) for _ in config.taps)
        self.fc_norm = nnx.List(each) if config.fc_norm else None
        self.fc = Linear(wide, size, bias=False, **facts)
        self.midlayer = Eagle3Layer(config, rngs=rngs)
        further = {str(i): Layer(block, rngs=rngs) for i in range(1, block.num_layers)}
        self.layers = nnx.Dict(further) if further else None
        drafts_at_once = config.mask_token_id is not None
        hidden = noise(rngs(), (1, 1, wide), block.dtype, 1) if drafts_at_once else None
        self.mask_hidden = None if hidden is None else nnx.Param(hidden)
        self.norm = Norm(block, size)
        rows = config.draft_vocab_size or block.vocab_size
        self.lm_head = Linear(size, rows, bias=False, **facts)
        reduced = config.draft_vocab_size is not None
        self.vocab_rows = nnx.Param(jnp.zeros(block.vocab_size, jnp.int32)) if reduced else None

    def fuse(
        self, hidden: Float[Array, "B N E"], taps: Float[Array, "B N A E"]
    ) -> Float[Array, "B N D"]:
        """Return ``fc`` of the tapped layers' hidden states side by side."""
        joined = taps.reshape(*taps.shape[:2], -1)
        if self.input_norm is not None:
            joined = self.input_norm(joined)
        if self.fc_norm is not None:
            parts = jnp.split(joined, len(self.config.taps), axis=-1)
            parts = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            joined = jnp.concatenate(parts, axis=-1)
        return self.fc(joined)

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
        """Return the next features and the head's cache (``types.ForwardHead``)."""
        pair = self.embed_tokens(tokens), features
        where = positions, visible, cache, window, only, present
        layers = [self.midlayer, *(self.layers.values() if self.layers else ())]
        x, cache = run_blocks(layers, pair, self.config.block, *where)
        return (self.norm(x) if self.config.norm_output else x), cache

    def mask_features(self) -> Float[Array, "1 1 D"]:
        """Return the feature of P-EAGLE's mask, which stands for taps that are not known yet."""
        assert self.mask_hidden is not None
        taps = self.mask_hidden[...].reshape(1, 1, len(self.config.taps), -1)
        return self.fuse(taps[:, :, 0], taps)

    def logits(self, features: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Return float32 logits of the target's vocabulary."""
        normed = features if self.config.norm_output else self.norm(features)
        return expand_to_vocab(self.lm_head(normed), self.vocab_rows)


def expand_to_vocab(
    own: Float[Array, "*lead R"], vocab_rows: nnx.Param | None
) -> Float[Array, "*lead V"]:
    """Return float32 logits of the whole vocabulary from those of a reduced one.

    ``vocab_rows`` [V] is each token's row in the reduced LM head (the inverse of EAGLE-3's d2t),
    one past the last for a token that it lacks, whose logit is -1e30. None: it is not reduced.
    """
    own = own.astype(jnp.float32)
    if vocab_rows is None:
        return own
    return jnp.take(own, vocab_rows[...], axis=-1, mode="fill", fill_value=FORBIDDEN)


class Mtp(nnx.Module):
    """A multi-token prediction layer (DeepSeek-V3, arXiv:2412.19437; MiMo, arXiv:2505.07608).

    The embedding at position 0 is masked (Qwen3-Next's is not), and the output normalised. MiMo's
    input is the target's last layer before the final norm, as a tap; DeepSeek's and Qwen3-Next's
    is the output of the norm.
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

    def fuse(
        self, hidden: Float[Array, "B N D"], taps: Float[Array, "B N A D"]
    ) -> Float[Array, "B N D"]:
        """Return the tapped hidden states (MiMo), or the last ones (DeepSeek)."""
        return taps[:, :, 0] if self.config.taps else hidden

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
        """Return the next features and the head's cache (``types.ForwardHead``)."""
        embedding = self.embed_tokens(tokens)
        if self.config.mask_first:
            embedding = jnp.where(positions[:, :, None] == 0, 0, embedding)
        pair = [self.enorm(embedding), self.hnorm(features)]
        x = self.eh_proj(jnp.concatenate(pair[:: -1 if self.config.hidden_first else 1], axis=-1))
        where = positions, visible, cache, window, only, present
        x, cache = run_blocks([self.block], x, self.config.block, *where)
        return self.norm(x), cache

    def logits(self, features: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Return float32 logits of the target's vocabulary."""
        return self.lm_head(features).astype(jnp.float32)


class Residual(nnx.Module):
    """Medusa's residual blocks: x + SiLU(W x) for each layer."""

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
    """Medusa (Cai et al. 2024, arXiv:2401.10774): head i predicts the token i + 2 places ahead."""

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
        self.vocab_rows = nnx.Param(jnp.zeros(config.vocab_size, jnp.int32)) if reduced else None

    def start(self, hidden: Float[Array, "B D"]) -> Float[Array, "B D"]:
        """Return the target's hidden state as it is."""
        return hidden

    def __call__(
        self, hidden: Float[Array, "B D"], token: Int[Array, "B"], stage: int
    ) -> tuple[Float[Array, "B D"], Float[Array, "B V"]]:
        """Return the hidden state, which all heads read, and head ``stage``'s logits."""
        lm_head = self.lm_heads[0 if self.shared_head else stage]
        return hidden, expand_to_vocab(lm_head(self.blocks[stage](hidden)), self.vocab_rows)

    def at_once(self, hidden: Float[Array, "B D"], depth: int) -> Float[Array, "B K V"]:
        """Return the logits of the first ``depth`` heads; a shared LM head is read once."""
        read = [block(hidden) for block in list(self.blocks)[:depth]]
        if self.shared_head:
            own = self.lm_heads[0](jnp.stack(read, axis=1))
        else:
            pairs = zip(self.lm_heads, read, strict=False)
            own = jnp.stack([lm_head(x) for lm_head, x in pairs], axis=1)
        return expand_to_vocab(own, self.vocab_rows)


class Stage(nnx.Module):
    """The weights of one step of the MLP speculator."""

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

    The state is the target's hidden state first, and each stage adds one token's embedding to it,
    with weights that keep its variance.
    """

    def __init__(self, config: SpeculatorConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.stages = nnx.List(
            Stage(config, config.inner_size if i else config.hidden_size, rngs=rngs)
            for i in range(config.num_stages)
        )

    def start(self, hidden: Float[Array, "B D"]) -> Float[Array, "B D"]:
        """Return the first state: the target's hidden state, normalised if the config says so."""
        if not self.config.scale_input:
            return hidden
        return ops.rms_norm(hidden, jnp.ones(hidden.shape[-1], hidden.dtype), 1e-6) / math.sqrt(2)

    def __call__(
        self, state: Float[Array, "B D"], token: Int[Array, "B"], stage: int
    ) -> tuple[Float[Array, "B I"], Float[Array, "B V"]]:
        """Return the next state and its logits, given the token after ``state``."""
        parts, size = self.stages[stage], self.config.inner_size
        keep = 0.5 ** (0.5 / self.config.num_stages)
        take = math.sqrt((1 - keep**2) * size / 2)
        state = parts.proj(state) + take / keep * parts.emb(token)
        state = ops.rms_norm(state, parts.ln["weight"][...], 1e-6) + parts.ln["bias"][...][None]
        state = jax.nn.gelu(state, approximate=False)
        return state, parts.head(state).astype(jnp.float32)
