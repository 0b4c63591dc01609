"""DFlash (arXiv:2602.06036) and DSpark: a block of tokens from the target's hidden states, at once.

The target's tapped hidden states give each layer's keys and values of the text; one pass over
[last token, mask, mask, ...] then gives all draft tokens. DSpark adds what the token before says
of the next (a Markov head of low rank), and how sure it is (a confidence head).
"""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from specjax.core.types import Cache, Slots
from specjax.models.config import BlockConfig
from specjax.models.decoder import Layer, layer_inputs, shared_angles
from specjax.models.heads import expand_to_vocab
from specjax.models.modules import Embedding, Linear, Norm


class Markov(nnx.Module):
    """DSpark's Markov head: a matrix of low rank from a token to logits of the next."""

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs):
        rank, facts = config.markov_rank, {"dtype": config.block.dtype, "rngs": rngs}
        self.markov_w1 = Embedding(config.block.vocab_size, rank, **facts)
        rows = config.draft_vocab_size or config.block.vocab_size
        self.markov_w2 = Linear(rank, rows, bias=False, **facts)


class Confidence(nnx.Module):
    """DSpark's confidence head: a logit that a draft token is accepted."""

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs):
        wide = config.block.hidden_size + config.markov_rank * (config.confidence == "markov")
        self.proj = Linear(wide, 1, bias=True, dtype=config.block.dtype, rngs=rngs)


class DFlash(nnx.Module):
    """A block-drafting head; its layers are ordinary ones that see the block in both directions."""

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs):
        self.config, block = config, config.block
        size, facts = block.hidden_size, {"dtype": block.dtype, "rngs": rngs}
        self.embed_tokens = Embedding(block.vocab_size, size, **facts)
        own = config.mask_embedding
        self.mask_embedding = nnx.Param(jnp.zeros(size, block.dtype)) if own else None
        wide = len(config.taps) * config.target_size
        self.fc = Linear(wide, size, bias=False, **facts)
        self.hidden_norm = Norm(block, size)
        self.layers = nnx.List(Layer(block, rngs=rngs) for _ in range(block.num_layers))
        self.norm = Norm(block, size)
        rows = config.draft_vocab_size or block.vocab_size
        self.lm_head = Linear(size, rows, bias=False, **facts)
        reduced = config.draft_vocab_size is not None
        self.vocab_rows = nnx.Param(jnp.zeros(block.vocab_size, jnp.int32)) if reduced else None
        self.markov_head = Markov(config, rngs=rngs) if config.markov_rank else None
        sure = config.confidence != "none"
        self.confidence_head = Confidence(config, rngs=rngs) if sure else None

    def remember(
        self, taps: Float[Array, "B P A E"], positions: Int[Array, "B P"], cache: Cache
    ) -> Cache:
        """Return the cache with the target's hidden states as keys and values (``Remember``).

        All layers read the same features; their own input norm is for the block alone.
        """
        features = self.hidden_norm(self.fc(taps.reshape(*taps.shape[:2], -1)))
        block = self.config.block
        angles = shared_angles(block, block.rope, positions)
        slots = cache.lengths[:, None] + jnp.arange(positions.shape[1])[None]
        written = (
            layer.self_attn.write(features, angles, one, slots)[0]
            for layer, one in zip(self.layers, cache.layers, strict=True)
            if isinstance(one, Slots)
        )
        return cache._replace(layers=tuple(written))

    def __call__(
        self,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        visible: Bool[Array, "B1 N M"],
        places: Int[Array, "B2 W"],
        cache: Cache,
        window: int,
    ) -> tuple[Float[Array, "B N D"], Cache]:
        """Return the block's hidden states and the cache (``ForwardBlock``)."""
        config, x = self.config, self.embed_tokens(tokens)
        if self.mask_embedding is not None:
            masked = (tokens == config.mask_token_id)[..., None]
            x = jnp.where(masked, self.mask_embedding[...].astype(x.dtype), x)
        each, slots = layer_inputs(config.block, positions, visible, cache, window)
        angles, mask = each[0]  # the same for all layers: what a layer sees is the head's fact
        layers, sees = list(cache.layers), narrowed(mask, positions, places, config)
        for i, layer in enumerate(self.layers):
            x, layers[i] = layer(x, angles, sees[i], layers[i], slots)
        return self.norm(x), cache._replace(layers=tuple(layers))

    def logits(self, hidden: Float[Array, "*lead D"]) -> Float[Array, "*lead V"]:
        """Return float32 logits of the target's vocabulary."""
        return expand_to_vocab(self.lm_head(hidden), self.vocab_rows)

    def follow(self, tokens: Int[Array, "*lead"]) -> Float[Array, "*lead V"]:
        """Return what the Markov head adds to the logits after each token."""
        assert self.markov_head is not None
        markov = self.markov_head
        bias = markov.markov_w2(markov.markov_w1(tokens)).astype(jnp.float32)
        if self.vocab_rows is None:
            return bias
        return jnp.take(bias, self.vocab_rows[...], axis=-1, mode="fill", fill_value=0.0)

    def confidence(
        self, hidden: Float[Array, "*lead D"], before: Int[Array, "*lead"]
    ) -> Float[Array, "*lead"]:
        """Return the logit of the chance to accept a draft token, given the token before it."""
        assert self.confidence_head is not None
        if self.config.confidence == "markov":
            assert self.markov_head is not None
            hidden = jnp.concatenate([hidden, self.markov_head.markov_w1(before)], axis=-1)
        return self.confidence_head.proj(hidden)[..., 0].astype(jnp.float32)


def narrowed(
    mask: Bool[Array, "B N W"],
    positions: Int[Array, "B N"],
    places: Int[Array, "B2 W"],
    config: BlockConfig,
) -> Sequence[Bool[Array, "B N W"]]:
    """Return each layer's mask: ``mask``, less what a causal layer or its sliding window hides.

    ``positions`` are the queries', ``places`` those of the cache's slots.
    """
    back = positions[:, :, None] - places[:, None]  # how far a slot lies behind
    kinds = {}
    for kind in dict.fromkeys(zip(config.causal, config.sliding_windows, strict=True)):
        causal, window = kind
        seen = mask & (back >= 0) if causal else mask
        kinds[kind] = seen if window is None else seen & (back < window)
    return [kinds[kind] for kind in zip(config.causal, config.sliding_windows, strict=True)]
