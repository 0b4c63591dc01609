"""vLLM's "draft_model": a small language model drafts tokens autoregressively."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.core.topology import causal
from specjax.core.types import Cache, Drafter, Target
from specjax.drafters.grow import grow, level_positions
from specjax.drafters.parallel import grow_at_once, masks
from specjax.drafters.tree import Tree, chain_of


class DraftState(NamedTuple):
    """The draft model's cache, which holds every committed token, and its last output."""

    cache: Cache
    hidden: Float[Array, "B D"]  # at the last committed token


@functools.cache
def draft_model(
    model: Target,
    tree: Tree | int,
    draft_sample_method: str = "greedy",
    max_model_len: int = 2**30,
    mask_token_id: int | None = None,
) -> Drafter:
    """Return the drafter: K levels by K - 1 forward passes, as the first needs the last output.

    With a mask token it is PARD (arXiv:2504.18583), vLLM's ``parallel_drafting``:
    one pass over K - 1 masks.

    Args:
        model: the draft model; its weights are the drafter's ``params``.
        tree: the shape of drafts; a number K is a chain of K tokens.
        draft_sample_method: "greedy", "coupled" or "probabilistic" (``drafters.grow``).
        max_model_len: nothing is proposed past it.
        mask_token_id: stands for a token that is to be drafted; None: one level follows another.
    """
    tree = chain_of(tree)

    def init(params, batch_size, capacity):
        cache = model.init_cache(batch_size, capacity)
        return DraftState(cache, jnp.zeros((batch_size, model.hidden_size), model.dtype))

    def propose_at_once(params, state, text, sampling, keys, window):
        tokens, positions = masks(mask_token_id, tree.depth - 1, state.cache.lengths)
        output, cache = model.forward(
            params, tokens, positions, causal(tree.depth - 1), state.cache, window
        )
        hidden = jnp.concatenate([state.hidden[:, None], output.hidden], axis=1)
        draft = grow_at_once(
            tree, model.logits(params, hidden), text, sampling, keys,
            draft_sample_method, max_model_len,
        )  # fmt: skip
        return draft, state._replace(cache=cache)

    def propose(params, state, text, sampling, keys, window):
        def read(cache, frontier, level):
            positions, lengths = level_positions(tree, frontier, level, state.cache.lengths)
            output, cache = model.forward(
                params, frontier.tokens, positions, frontier.visible,
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

    def observe(params, state, text, observation, window):
        wide = observation.tokens.shape[1] + 1
        positions = observation.start[:, None] + jnp.arange(wide)[None]
        index = jnp.minimum(positions, text.tokens.shape[1] - 1)
        tokens = jnp.take_along_axis(text.tokens, index, axis=1)
        cache = state.cache._replace(lengths=observation.start)
        fresh = observation.count > 0
        real = (
            jnp.arange(wide)[None] <= observation.count[:, None]
        )  # one at least, which is read again
        output, cache = model.forward(
            params, tokens, positions, causal(wide), cache, window, observation.count, real
        )
        last = output.hidden[:, 0]
        lengths = jnp.where(fresh, observation.start + observation.count + 1, state.cache.lengths)
        hidden = jnp.where(fresh[:, None], last, state.hidden)
        return DraftState(cache._replace(lengths=lengths), hidden)

    nodes = tree.num_nodes + 1
    if mask_token_id is None or tree.depth == 1:
        return Drafter(init, propose, observe, tree.depth, nodes, tree.slots)
    return Drafter(init, propose_at_once, observe, tree.depth, nodes, tree.depth - 1)
