"""DFlash (arXiv:2602.06036) and DSpark: a head drafts a whole block in one pass.

The head's cache holds keys and values made of the target's tapped hidden states, of every token
but the last. A round reads [last token, mask, ..., mask] once; each row of the block gives the
logits of its own token, or with ``sample_from_anchor`` (DSpark) of the next. The block's own keys
and values are written past the cache's length, and forgotten.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from specjax.core.sampling import FORBIDDEN
from specjax.core.types import BlockHead, Cache, Drafter
from specjax.drafters.parallel import grow_at_once, masks
from specjax.drafters.tree import Tree, chain_of


@functools.cache
def block_drafter(
    head: BlockHead,
    tree: Tree | int,
    draft_sample_method: str = "greedy",
    max_model_len: int = 2**30,
    top_k: int | None = None,
) -> Drafter:
    """Return the drafter; its state is the head's cache.

    Args:
        head: the DFlash or DSpark head; its weights are the drafter's ``params``.
        tree: the shape of drafts; a number K is a chain of K tokens.
        draft_sample_method: "greedy", "coupled" or "probabilistic" (``drafters.grow``).
        max_model_len: nothing is proposed past it.
        top_k: only so many of the likeliest tokens of a place can be drafted there (vLLM's
            ``dspark_draft_topk``); None: all.
    """
    tree = chain_of(tree)
    first = 0 if head.sample_from_anchor else 1  # the row that gives draft token 1
    rows = tree.depth + first

    def init(params, batch_size, capacity):
        return head.init_cache(batch_size, capacity)

    def propose(params, state: Cache, text, sampling, keys, window):
        tokens, positions = masks(head.mask_token_id, rows, state.lengths)
        last = jnp.take_along_axis(text.tokens, text.lengths[:, None] - 1, axis=1)
        tokens = tokens.at[:, 0].set(last[:, 0])
        visible = jnp.asarray(np.ones((1, rows, rows), bool))
        places = jnp.arange(window)[None]
        hidden, cache = head.forward(params, tokens, positions, visible, places, state, window)
        logits = head.logits(params, hidden[:, first:])
        if top_k is not None:
            least = lax.top_k(logits, min(top_k, logits.shape[-1]))[0][..., -1:]
            logits = jnp.where(logits >= least, logits, FORBIDDEN)
        draft = grow_at_once(
            tree, logits, text, sampling, keys,
            draft_sample_method, max_model_len, head.follow, params,
            hidden[:, first:], head.confidence,
        )  # fmt: skip
        return draft, cache

    def observe(params, state: Cache, text, observation, window):
        positions = observation.start[:, None] + jnp.arange(observation.tokens.shape[1])[None]
        cache = state._replace(lengths=observation.start)
        cache = head.remember(params, observation.taps, positions, cache)
        after = observation.start + observation.count
        return cache._replace(lengths=jnp.where(observation.count > 0, after, state.lengths))

    nodes = tree.num_nodes + 1
    return Drafter(init, propose, observe, tree.depth, nodes, rows, reads_hidden=True)
