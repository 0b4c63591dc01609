"""Run a head's drafting steps at many positions of a text at once, as training needs them.

EAGLE-3's training-time test (Li et al. 2025, arXiv:2503.01840): after the first pass over
(token, feature) pairs, the head reads its own outputs in place of the target's features, one
step further each pass. A pair of pass s sees the first pass's pairs up to s places back, then
one pair of each later pass: what it would find in its cache after s drafts.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax.core.types import PyTree, Target
from specjax.models.build import HeadConfig, build_block_head, build_feature_head, build_stages
from specjax.models.config import BlockConfig, FeatureConfig
from specjax.train.features import Features


class Drafted(NamedTuple):
    """The logits of one draft step, for all places that are drafted from."""

    logits: Float[Array, "B P V"]
    features: Float[Array, "B P D"]  # that they were read from
    at: Int[Array, "P"]  # which of the tokens after positions 1 .. T - 1 they are of
    confidence: Float[Array, "B P"] | None = None  # DSpark's logit that a token is accepted


def build_unrolled(config: HeadConfig, depth: int, layers: tuple[int, ...]) -> Callable:
    """Return (params, Features) -> one ``Drafted`` per position of the draft."""
    if isinstance(config, FeatureConfig) and config.mask_token_id is not None:
        return masked_features(config, depth, layers)
    if isinstance(config, FeatureConfig):
        return unrolled_features(config, depth, layers)
    if isinstance(config, BlockConfig):
        return drafted_blocks(config, depth, layers)
    stages = build_stages(config)

    def run(params: PyTree, batch: Features) -> list[Drafted]:
        hidden, drafted = batch.hidden_states[:, :-1].astype(config.dtype), []
        rows, pairs, size = hidden.shape
        carry = stages.start(params, hidden.reshape(rows * pairs, size))
        for level in range(depth):
            follows = jnp.roll(batch.token_ids[:, 1:-1], -level, axis=1)
            carry, logits = stages.step(params, carry, follows.reshape(-1), level)
            shown, read = (x.reshape(rows, pairs, -1)[:, : pairs - level] for x in (logits, carry))
            drafted.append(Drafted(shown, read, jnp.arange(level, pairs)))
        return drafted

    return run


def unrolled_features(config: FeatureConfig, depth: int, layers: tuple[int, ...]) -> Callable:
    """Return ``build_unrolled``'s function for EAGLE, EAGLE-3 and MTP."""
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
            real = after[:, level:]
            drafted.append(Drafted(head.logits(params, real), real, jnp.arange(level, pairs)))
            features = jnp.concatenate([jnp.zeros((rows, 1, size), after.dtype), after[:, :-1]], 1)
        return drafted

    return run


SHARES = 0.7, 0.2  # of the places that each further mask keeps, and the least of all


class Masks(NamedTuple):
    """Places of a text, and masks after some of them: place + mask is where a mask stands."""

    place: Int[Array, "M"]  # of each element: first all P places, then those of the masks
    mask: Int[Array, "M"]  # how many masks after its place it is, 0: the place itself
    visible: Bool[Array, "1 M M"]
    kept: list[Int[Array, "N"]]  # the places that have a mask 0, 1, ... after them


def masks_after(token_ids: Int[Array, "B T1"], count: int, depth: int) -> Masks:
    """Return which of ``count`` places have how many masks, at most ``depth`` - 1.

    A mask sees the text up to its place and the masks before it. Ever fewer places keep a further
    mask (conditional drop, PARD's); which ones the batch decides.
    """
    keep, least = SHARES
    key = jax.random.fold_in(jax.random.key(0), jnp.sum(token_ids))
    order = jax.random.permutation(key, count - depth + 1)  # the last have no room for masks
    kept = [jnp.arange(count)]
    kept += [
        jnp.sort(order[: max(1, round(len(order) * max(keep**d, least)))]) for d in range(1, depth)
    ]
    place = jnp.concatenate(kept)
    mask = jnp.concatenate([jnp.full(len(one), d) for d, one in enumerate(kept)])
    same = (place[:, None] == place[None]) & (mask[:, None] >= mask[None])
    visible = same | ((mask == 0)[None] & (place[None] <= place[:, None]))
    return Masks(place, mask, visible[None], kept)


def by_mask(masks: Masks, outputs: Float[Array, "B M D"]) -> list[Float[Array, "B N D"]]:
    """Return the outputs after 0, 1, ... masks."""
    return jnp.split(outputs, np.cumsum([len(one) for one in masks.kept])[:-1], axis=1)


def masked_features(config: FeatureConfig, depth: int, layers: tuple[int, ...]) -> Callable:
    """Return ``build_unrolled``'s function for P-EAGLE: pairs, and masks after some of them.

    All are read in one pass.
    """
    head, index = build_feature_head(config), [layers.index(layer) for layer in config.taps]
    mask_features, mask_token_id = head.mask_features, head.mask_token_id
    assert mask_features is not None
    assert mask_token_id is not None

    def run(params: PyTree, batch: Features) -> list[Drafted]:
        wide = (batch.hidden_states, batch.taps[:, :, jnp.asarray(index, jnp.int32)])
        features = head.fuse(params, *(x.astype(config.block.dtype) for x in wide))[:, :-1]
        rows, pairs, size = features.shape
        masks = masks_after(batch.token_ids, pairs, depth)
        number = len(masks.place)
        masked = (rows, number - pairs)
        tokens = jnp.full(masked, mask_token_id, batch.token_ids.dtype)
        tokens = jnp.concatenate([batch.token_ids[:, 1:-1], tokens], axis=1)
        mask = jnp.broadcast_to(mask_features(params), (*masked, size)).astype(features.dtype)
        read = jnp.concatenate([features, mask], axis=1)
        positions = jnp.broadcast_to((masks.place + masks.mask)[None], tokens.shape)
        cache = head.init_cache(rows, number)
        after, _ = head.forward(params, tokens, read, positions, masks.visible, cache, number)
        return [
            Drafted(head.logits(params, one), one, places + d)
            for d, (places, one) in enumerate(
                zip(masks.kept, by_mask(masks, after), strict=True)
            )
        ]  # fmt: skip

    return run


def masked_text(model: Target, mask_token_id: int, depth: int) -> Callable:
    """Return ``build_unrolled``'s function for PARD: a text, and masks after some of its tokens.

    What follows the first token of all is not drafted in serving, nor here.
    """

    def run(params: PyTree, batch: Features) -> list[Drafted]:
        text = batch.token_ids[:, :-1]
        rows, length = text.shape
        masks = masks_after(batch.token_ids, length, depth)
        number = len(masks.place)
        tokens = jnp.full((rows, number - length), mask_token_id, text.dtype)
        tokens = jnp.concatenate([text, tokens], axis=1)
        positions = jnp.broadcast_to((masks.place + masks.mask)[None], tokens.shape)
        cache = model.init_cache(rows, number)
        output, _ = model.forward(params, tokens, positions, masks.visible, cache, number)
        drafted = []
        for d, (places, hidden) in enumerate(
            zip(masks.kept, by_mask(masks, output.hidden), strict=True)
        ):
            if d == 0:
                places, hidden = places[1:], hidden[:, 1:]
            drafted.append(Drafted(model.logits(params, hidden), hidden, places + d - 1))
        return drafted

    return run


def drafted_blocks(config: BlockConfig, depth: int, layers: tuple[int, ...]) -> Callable:
    """Return ``build_unrolled``'s function for DFlash and DSpark: blocks from some places.

    These places, the anchors, are one every ``depth`` tokens, from a first one that the batch
    decides. A block sees the text strictly before its anchor, and itself.
    """
    head, index = build_block_head(config), [layers.index(layer) for layer in config.taps]
    first = 0 if config.sample_from_anchor else 1
    rows = depth + first

    def run(params: PyTree, batch: Features) -> list[Drafted]:
        taps = batch.taps[:, :, jnp.asarray(index, jnp.int32)].astype(config.block.dtype)
        size, length = taps.shape[:2]
        count = (length - depth) // depth
        anchors = 1 + jnp.sum(batch.token_ids) % depth + depth * jnp.arange(count)
        anchors = jnp.minimum(anchors, length - depth)
        text = jnp.arange(length)
        in_text = jnp.broadcast_to(text[None], (size, length))
        cache = head.remember(params, taps, in_text, head.init_cache(size, length + count * rows))
        roots = jnp.take(batch.token_ids, anchors, axis=1)[:, :, None]
        masks = jnp.full((size, count, rows - 1), config.mask_token_id, roots.dtype)
        tokens = jnp.concatenate([roots, masks], axis=2).reshape(size, -1)
        positions = (anchors[:, None] + jnp.arange(rows)[None]).reshape(-1)
        block = jnp.repeat(jnp.arange(count), rows)
        before = text[None] < jnp.repeat(anchors, rows)[:, None]
        visible = jnp.concatenate([before, block[:, None] == block[None]], axis=1)[None]
        places = jnp.concatenate([text, positions])[None]
        hidden, _ = head.forward(
            params, tokens, jnp.broadcast_to(positions[None], tokens.shape), visible, places,
            cache, length + count * rows,
        )  # fmt: skip
        hidden = hidden.reshape(size, count, rows, -1)[:, :, first:]
        drafted = []
        for level in range(depth):
            features = hidden[:, :, level]
            logits = head.logits(params, features)
            before = jnp.take(batch.token_ids, anchors + level, axis=1)
            if head.follow is not None:
                logits = logits + head.follow(params, before)
            sure = None
            if head.confidence is not None:
                sure = head.confidence(params, features, before)
            drafted.append(Drafted(logits, features, anchors + level - 1, sure))
        return drafted

    return run


def sees(pairs: int, level: int) -> Bool[Array, "1 P M"]:
    """Return the attention mask of draft step ``level`` over all steps up to it, concatenated."""
    index = np.arange(pairs)
    back = index[:, None] - index[None]  # how far a pair lies behind
    blocks = [back >= level, *(back == level - i for i in range(1, level + 1))]
    return jnp.asarray(np.hstack(blocks)[None])
