"""A small language model as the drafter, reading the same text as the target."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.drafters.grow import grow, places
from specjax.drafters.tree import Tree, chain_of
from specjax.topology import causal
from specjax.types import Cache, Drafter, Target


class DraftState(NamedTuple):
    """Between rounds the cache holds every committed token."""

    cache: Cache
    hidden: Float[Array, "B D"]  # the model's last output, after the last committed token


@functools.cache
def draft_model(
    model: Target,
    tree: Tree | int,
    draft_sample_method: str = "greedy",
    max_model_len: int = 2**30,
) -> Drafter:
    """Build the drafter: K levels by K - 1 passes from the last output; a number is a chain."""
    tree = chain_of(tree)

    def init(params, batch_size, capacity):
        cache = model.init_cache(batch_size, capacity)
        return DraftState(cache, jnp.zeros((batch_size, model.hidden_size), model.dtype))

    def propose(params, state, text, sampling, keys, window):
        def read(cache, front, level):
            positions, lengths = places(tree, front, level, state.cache.lengths)
            output, cache = model.forward(
                params, front.tokens, positions, front.visible,
                cache._replace(lengths=lengths), window,
            )  # fmt: skip
            return cache, output.hidden

        def logits(hidden):
            return model.logits(params, hidden)

        draft, cache = grow(
            tree, state.cache, state.hidden[:, None], read, logits,
            text, sampling, keys, draft_sample_method, max_model_len,
        )  # fmt: skip
        return draft, state._replace(cache=cache._replace(lengths=state.cache.lengths))

    def observe(params, state, text, seen, window):
        wide = seen.tokens.shape[1] + 1
        positions = seen.start[:, None] + jnp.arange(wide)[None]
        index = jnp.minimum(positions, text.tokens.shape[1] - 1)
        tokens = jnp.take_along_axis(text.tokens, index, axis=1)
        cache = state.cache._replace(lengths=seen.start)
        fresh = seen.count > 0
        real = jnp.arange(wide)[None] <= seen.count[:, None]  # one at least: it is there already
        output, cache = model.forward(
            params, tokens, positions, causal(wide), cache, window, seen.count, real
        )
        last = output.hidden[:, 0]
        lengths = jnp.where(fresh, seen.start + seen.count + 1, state.cache.lengths)
        hidden = jnp.where(fresh[:, None], last, state.hidden)
        return DraftState(cache._replace(lengths=lengths), hidden)

    return Drafter(init, propose, observe, tree.depth, tree.num_nodes + 1, tree.slots)
