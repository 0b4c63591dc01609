"""A small language model as the drafter, reading the same text as the target."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.drafters.unroll import unroll
from specjax.topology import causal
from specjax.types import Cache, Drafter, Target


class DraftState(NamedTuple):
    """Between rounds the cache holds every committed token."""

    cache: Cache
    hidden: Float[Array, "B D"]  # the model's last output, after the last committed token


@functools.cache
def draft_model(
    model: Target,
    num_speculative_tokens: int,
    draft_sample_method: str = "greedy",
    max_model_len: int = 2**30,
) -> Drafter:
    """Build the drafter: K tokens by K - 1 one-token passes from the last output."""
    depth = num_speculative_tokens

    def init(params, batch_size, capacity):
        cache = model.init_cache(batch_size, capacity)
        return DraftState(cache, jnp.zeros((batch_size, model.hidden_size), cache.keys[0].dtype))

    def propose(params, state, text, sampling, keys, window):
        def logits(carry):
            return model.logits(params, carry.hidden[:, None])[:, 0]

        def read(carry, token):
            cache = carry.cache
            output, cache = model.forward(
                params, token[:, None], cache.lengths[:, None], causal(1), cache, window
            )
            cache = cache._replace(lengths=cache.lengths + 1)
            return DraftState(cache, output.hidden[:, 0])

        draft, last = unroll(
            state, logits, read, depth, text, sampling, keys,
            draft_sample_method, model.vocab_size, max_model_len,
        )  # fmt: skip
        return draft, state._replace(cache=last.cache._replace(lengths=state.cache.lengths))

    def observe(params, state, text, seen, window):
        wide = seen.tokens.shape[1] + 1
        positions = seen.start[:, None] + jnp.arange(wide)[None]
        index = jnp.minimum(positions, text.tokens.shape[1] - 1)
        tokens = jnp.take_along_axis(text.tokens, index, axis=1)
        cache = state.cache._replace(lengths=seen.start)
        output, cache = model.forward(params, tokens, positions, causal(wide), cache, window)
        last = jnp.take_along_axis(output.hidden, seen.count[:, None, None], axis=1)[:, 0]
        fresh = seen.count > 0
        lengths = jnp.where(fresh, seen.start + seen.count + 1, state.cache.lengths)
        hidden = jnp.where(fresh[:, None], last, state.hidden)
        return DraftState(cache._replace(lengths=lengths), hidden)

    return Drafter(init, propose, observe, depth, depth + 1)
