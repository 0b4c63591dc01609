"""EAGLE, EAGLE-3 and MTP: a head that rebuilds the target's features and drafts from them.

The head reads pairs of a token and the feature before it: pair i is the committed token i + 1
with the target's feature of position i, at rotary position i (EAGLE's shift, which
``Observation`` has made already). Past the committed text it reads its own drafts and its own
features. With K beyond what it was trained for, the one block is used again.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.drafters.grow import grow, places
from specjax.drafters.tree import Tree, chain_of
from specjax.topology import causal
from specjax.types import Cache, Drafter, FeatureHead


class FeatureState(NamedTuple):
    """Between rounds the cache holds every pair: one less than committed tokens."""

    cache: Cache
    feature: Float[Array, "B D"]  # the head's last output, after the last committed token


@functools.cache
def feature(
    head: FeatureHead,
    tree: Tree | int,
    draft_sample_method: str = "greedy",
    max_model_len: int = 2**30,
) -> Drafter:
    """Build the drafter: K levels by K - 1 passes from the last feature; a number is a chain."""
    tree = chain_of(tree)

    def init(params, batch_size, capacity):
        cache = head.init_cache(batch_size, capacity)
        return FeatureState(cache, jnp.zeros((batch_size, head.size), head.dtype))

    def propose(params, state, text, sampling, keys, window):
        def read(cache, front, level):
            positions, lengths = places(tree, front, level, state.cache.lengths)
            after, cache = head.forward(
                params, front.tokens, front.before, positions, front.visible,
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

    def observe(params, state, text, seen, window):
        wide = seen.tokens.shape[1]
        positions = seen.start[:, None] + jnp.arange(wide)[None]
        features = head.fuse(params, seen.hidden, seen.taps)
        cache = state.cache._replace(lengths=seen.start)
        last = jnp.maximum(seen.count - 1, 0)  # all that drafts need of this: rounds took 2% less
        real = jnp.arange(wide)[None] < seen.count[:, None]
        after, cache = head.forward(
            params, seen.tokens, features, positions, causal(wide), cache, window, last, real
        )
        some = seen.count > 0
        lengths = jnp.where(some, seen.start + seen.count, state.cache.lengths)
        newest = jnp.where(some[:, None], after[:, 0], state.feature)
        return FeatureState(cache._replace(lengths=lengths), newest)

    nodes, slots = tree.num_nodes + 1, tree.slots
    return Drafter(init, propose, observe, tree.depth, nodes, slots, reads_hidden=True)
