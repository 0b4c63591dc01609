"""EAGLE, EAGLE-3 and MTP: a head that predicts the target's next features, and drafts from them.

The head reads pairs of a token and the feature before it: pair i is the committed token i + 1
with the target's feature of position i, at RoPE position i (EAGLE's shift, which ``Observation``
contains already). Past the committed text it reads its own draft tokens and its own features; for
a K larger than the head was trained with, the one block is applied again. P-EAGLE reads
K - 1 masks instead, all in one pass.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.core.topology import causal
from specjax.core.types import Cache, Drafter, FeatureHead
from specjax.drafters.grow import grow, level_positions
from specjax.drafters.parallel import grow_at_once, masks
from specjax.drafters.tree import Tree, chain_of


class FeatureState(NamedTuple):
    """The head's cache, which holds every pair (one less than committed tokens), and its output."""

    cache: Cache
    feature: Float[Array, "B D"]  # the head's last output, at the last committed token


@functools.cache
def feature(
    head: FeatureHead,
    tree: Tree | int,
    draft_sample_method: str = "greedy",
    max_model_len: int = 2**30,
) -> Drafter:
    """Return the drafter: K levels by K - 1 forward passes, as the first needs the last feature.

    Args:
        head: the EAGLE, EAGLE-3 or MTP head; its weights are the drafter's ``params``.
        tree: the shape of drafts; a number K is a chain of K tokens.
        draft_sample_method: "greedy", "coupled" or "probabilistic" (``drafters.grow``).
        max_model_len: nothing is proposed past it.
    """
    tree = chain_of(tree)

    def init(params, batch_size, capacity):
        cache = head.init_cache(batch_size, capacity)
        return FeatureState(cache, jnp.zeros((batch_size, head.size), head.dtype))

    def propose_at_once(params, state, text, sampling, keys, window):
        assert head.mask_features is not None
        tokens, positions = masks(head.mask_token_id, tree.depth - 1, state.cache.lengths)
        mask = head.mask_features(params)
        features = jnp.broadcast_to(mask, (*tokens.shape, head.size)).astype(head.dtype)
        after, cache = head.forward(
            params, tokens, features, positions, causal(tree.depth - 1), state.cache, window
        )
        after = jnp.concatenate([state.feature[:, None], after], axis=1)
        draft = grow_at_once(
            tree, head.logits(params, after), text, sampling, keys,
            draft_sample_method, max_model_len,
        )  # fmt: skip
        return draft, state._replace(cache=cache)

    def propose(params, state, text, sampling, keys, window):
        def read(cache, frontier, level):
            positions, lengths = level_positions(tree, frontier, level, state.cache.lengths)
            after, cache = head.forward(
                params, frontier.tokens, frontier.before, positions, frontier.visible,
                cache._replace(lengths=lengths), window,
            )  # fmt: skip
            return cache, after

        def logits(features):
            return head.logits(params, features)

        draft, cache = grow(
            tree, state.cache, state.feature[:, None], read, logits,
            text, sampling, keys, draft_sample_method, max_model_len,
        )  # fmt: skip
        return draft, state._replace(cache=cache._replace(lengths=state.cache.lengths))

    def observe(params, state, text, observation, window):
        wide = observation.tokens.shape[1]
        positions = observation.start[:, None] + jnp.arange(wide)[None]
        features = head.fuse(params, observation.hidden, observation.taps)
        cache = state.cache._replace(lengths=observation.start)
        last = jnp.maximum(
            observation.count - 1, 0
        )  # drafts need no other output: rounds took 2% less
        real = jnp.arange(wide)[None] < observation.count[:, None]
        after, cache = head.forward(
            params, observation.tokens, features, positions, causal(wide), cache, window, last, real
        )
        some = observation.count > 0
        lengths = jnp.where(some, observation.start + observation.count, state.cache.lengths)
        newest = jnp.where(some[:, None], after[:, 0], state.feature)
        return FeatureState(cache._replace(lengths=lengths), newest)

    at_once = head.mask_features is not None and tree.depth > 1
    slots, propose = (tree.depth - 1, propose_at_once) if at_once else (tree.slots, propose)
    nodes = tree.num_nodes + 1
    return Drafter(init, propose, observe, tree.depth, nodes, slots, reads_hidden=True)
