"""A small language model as the drafter, reading the same text as the target.

``draft_sample_method``: "greedy" proposes its most likely tokens; "coupled" samples with
the very noise the target will use, so that both tend to choose alike (drafter-invariant
speculative decoding, Daliri, Musco & Suresh 2025); "probabilistic" samples from
softmax(logits / T) with noise of its own and reports that law, for rejection sampling.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax import sampling as s
from specjax.drafters.none import chain
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
    """Build the drafter: K tokens by K - 1 one-token passes from the last output.

    Nothing is proposed at places the draft model cannot reach (``max_model_len``).
    """
    depth = num_speculative_tokens

    def init(params, batch_size, capacity):
        cache = model.init_cache(batch_size, capacity)
        return DraftState(cache, jnp.zeros((batch_size, model.hidden_size), cache.keys[0].dtype))

    def propose(params, state, text, sampling, keys, window):
        batch_size, unused = text.tokens.shape[0], model.vocab_size

        def pick(hidden, path, level):
            logits = model.logits(params, hidden[:, None])
            position = text.lengths[:, None] + level
            if draft_sample_method == "coupled":
                noise = s.gumbel(keys, position, s.CHOOSE, sampling, model.vocab_size)
                logits = s.constrain(logits, path[:, None], text, sampling)
                return s.choose(logits, noise, sampling)[:, 0], None
            if draft_sample_method == "probabilistic":
                noise = s.gumbel(keys, position, s.PROPOSE, sampling, model.vocab_size)
                return s.choose(logits, noise, sampling)[:, 0], s.law(logits, sampling)[:, 0]
            return jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32), None

        def extend(carry, level):
            cache, hidden, path = carry
            token, law = pick(hidden, path, level)
            path = path.at[:, level].set(token)
            output, cache = model.forward(
                params, token[:, None], cache.lengths[:, None], causal(1), cache, window
            )
            cache = cache._replace(lengths=cache.lengths + 1)
            return (cache, output.hidden[:, 0], path), law

        path = jnp.full((batch_size, depth), unused, jnp.int32)
        start = (state.cache, state.hidden, path)
        (cache, hidden, path), laws = jax.lax.scan(extend, start, jnp.arange(depth - 1))
        token, law = pick(hidden, path, depth - 1)
        path = path.at[:, -1].set(token)
        probs = None
        if law is not None and laws is not None:
            root = jnp.zeros_like(law)[None]
            probs = jnp.concatenate([root, laws, law[None]]).swapaxes(0, 1)
        reached = text.lengths[:, None] + jnp.arange(depth)[None] < max_model_len
        draft = chain(text, path, reached, probs)
        return draft, state._replace(cache=cache._replace(lengths=state.cache.lengths))

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
