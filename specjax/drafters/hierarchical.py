"""A drafter that itself speculates: an ``Engine``, target and drafter, drafts for a larger target.

The draft model decodes greedily with a drafter of its own, in rounds of draft, verify and accept,
until K tokens are there. They are the tokens that it would draft one by one, in fewer passes
(cascade speculative drafting, Chen et al. 2023, arXiv:2312.11462).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from specjax.core import decode
from specjax.core.topology import causal
from specjax.core.types import (
    IDLE,
    RUNNING,
    Cache,
    Drafter,
    Engine,
    Observation,
    PyTree,
    Sampling,
    State,
)
from specjax.drafters.none import chain


class DraftingState(NamedTuple):
    """The draft model's cache, which is one token behind the text, and its drafter's state."""

    cache: Cache
    drafter: PyTree


@functools.cache
def hierarchical(
    engine: Engine, num_speculative_tokens: int, max_model_len: int = 2**30
) -> Drafter:
    """Return the drafter; its params are the engine's ``Params``.

    Args:
        engine: the draft model as ``target``, its drafter, and a rule: ``walk``. Its window is not
            used.
        num_speculative_tokens: K.
        max_model_len: nothing is proposed past it.
    """
    model, inner, depth = engine.target, engine.drafter, num_speculative_tokens

    def init(params, batch_size, capacity):
        return DraftingState(
            model.init_cache(batch_size, capacity), inner.init(params.draft, batch_size, capacity)
        )

    def propose(params, state, text, sampling, keys, window):
        size, capacity = text.tokens.shape
        end = jnp.minimum(text.lengths + depth, min(capacity, max_model_len))
        drafting = (text.reason == RUNNING) & (text.lengths < end)
        greedy = Sampling(
            temperature=jnp.zeros(size, jnp.float32),
            max_draft=jnp.full(size, depth, jnp.int32),
            stop_ids=jnp.full((size, 1), model.vocab_size, jnp.int32),
        )
        own = text._replace(limits=end, reason=jnp.where(drafting, RUNNING, IDLE))
        after = lax.while_loop(
            lambda each: (each.text.reason == RUNNING).any(),
            lambda each: decode.step(engine._replace(window=window), params, each)[0],
            State(own, state.cache, state.drafter, greedy, keys),
        )
        index = text.lengths[:, None] + jnp.arange(depth)[None]
        proposed = jnp.take_along_axis(after.text.tokens, jnp.minimum(index, capacity - 1), axis=1)
        draft = chain(text, proposed, index < after.text.lengths[:, None])
        return draft, rewind(state, DraftingState(after.cache, after.drafter))

    def observe(params, state, text, observation, window):
        start, count = observation.start, observation.count
        wide = observation.tokens.shape[1]
        positions = start[:, None] + jnp.arange(wide)[None]
        index = jnp.minimum(positions, text.tokens.shape[1] - 1)
        tokens = jnp.take_along_axis(text.tokens, index, axis=1)
        real = jnp.arange(wide)[None] < count[:, None]
        output, cache = model.forward(
            params.target, tokens, positions, causal(wide), state.cache._replace(lengths=start),
            window, None, real,
        )  # fmt: skip
        lengths = jnp.where(count > 0, start + count, state.cache.lengths)
        seen = Observation(observation.tokens, output.hidden, output.taps, start, count)
        following = inner.observe(params.draft, state.drafter, text, seen, window)
        return DraftingState(cache._replace(lengths=lengths), following)

    return Drafter(init, propose, observe, depth, depth + 1, depth + inner.room)


def rewind(before: PyTree, after: PyTree) -> PyTree:
    """Return a state as it was before drafting.

    Of a cache only the lengths count: what was written past them stays, so that it is not copied.
    """

    def one(old, new):
        return new._replace(lengths=old.lengths) if isinstance(old, Cache) else old

    return jax.tree.map(one, before, after, is_leaf=lambda node: isinstance(node, Cache))
