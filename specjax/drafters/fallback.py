"""Two drafters as one: the second drafts in rows where the first finds nothing.

So does Arctic Inference: suffix decoding first, a draft model where no suffix matches (Oliaro et
al. 2024, arXiv:2411.04975). Any two drafters compose, compositions too.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Shaped

from specjax.core.topology import chain_parents
from specjax.core.types import RUNNING, Draft, Drafter, PyTree


class Both(NamedTuple):
    """What belongs to each of the two: their params, or their states."""

    first: PyTree
    second: PyTree


@functools.cache
def fallback(first: Drafter, second: Drafter) -> Drafter:
    """Return the drafter; its params are ``Both``, its tapped layers those of both.

    The second one is not run in a round in which the first drafts for every running row. Sampled
    drafts stay exact: a token of a drafter that does not sample counts as certain.

    Args:
        first: whose draft is used where it has a token.
        second: whose draft is used elsewhere.
    """
    taps = tuple(sorted({*first.taps, *second.taps}))
    depth, nodes = max(first.depth, second.depth), max(first.nodes, second.nodes)
    is_chain = all(one.nodes == one.depth + 1 for one in (first, second))
    nodes += not is_chain and nodes == depth + 1  # a chain is recognised by its size

    def init(params, batch_size, capacity):
        return Both(
            first.init(params.first, batch_size, capacity),
            second.init(params.second, batch_size, capacity),
        )

    def propose(params, state, text, sampling, keys, window):
        def widened(draft: Draft) -> Draft:
            pad = [(0, 0), (0, nodes - draft.tokens.shape[1])]
            tokens, parents, valid = (jnp.pad(leaf, pad) for leaf in draft[:3])
            if is_chain:
                parents = chain_parents(*tokens.shape)
            probs = draft.probs
            probs = probs if probs is None else jnp.pad(probs, [*pad, (0, 0)])
            return Draft(tokens, parents, valid, probs)

        def ask_second(own):
            draft, own = second.propose(params.second, own, text, sampling, keys, window)
            return widened(draft), own

        draft, own = first.propose(params.first, state.first, text, sampling, keys, window)
        draft = widened(draft)
        found = draft.valid[:, 1:].any(axis=1)
        unused = jax.eval_shape(ask_second, state.second)[0]
        draft = with_probs_of(draft, unused)
        satisfied = found | (text.reason != RUNNING) | (sampling.max_draft == 0)

        def ask(_, carried):
            draft, own = carried
            other, own = ask_second(own)
            other = with_probs_of(other, draft)
            return jax.tree.map(lambda a, b: jnp.where(expand(found, a), a, b), draft, other), own

        # one turn of a loop or none: XLA would copy the second's cache into a branch of `lax.cond`
        turns = jnp.where(satisfied.all(), 0, 1)
        draft, other = lax.fori_loop(0, turns, ask, (draft, state.second))
        return draft, Both(own, other)

    def observe(params, state, text, observation, window):
        def shown(one: Drafter):
            if one.taps in ((), taps):
                return observation
            own = np.asarray([taps.index(layer) for layer in one.taps], int)
            return observation._replace(taps=observation.taps[:, :, own])

        return Both(
            first.observe(params.first, state.first, text, shown(first), window),
            second.observe(params.second, state.second, text, shown(second), window),
        )

    return Drafter(
        init, propose, observe, depth, nodes,
        slots=max(first.slots, second.slots),
        reads_hidden=first.reads_hidden or second.reads_hidden,
        taps=taps,
    )  # fmt: skip


def with_first(params: PyTree, first: PyTree) -> PyTree:
    """Return a drafter's params with those of the first drafter, which may be the only one."""
    return params._replace(first=first) if isinstance(params, Both) else first


def expand(rows: Bool[Array, "B"], leaf: Shaped[Array, "B ..."]) -> Bool[Array, "B ..."]:
    """Return a mask [B] with the dimensions of a leaf."""
    return rows.reshape(-1, *[1] * (leaf.ndim - 1))


def with_probs_of(draft: Draft, other: Draft) -> Draft:
    """Return a draft with probs if the other one has some: 1 for tokens that were not sampled."""
    if draft.probs is not None or other.probs is None:
        return draft
    certain = jax.nn.one_hot(draft.tokens, other.probs.shape[-1], dtype=jnp.float32)
    certain *= draft.valid[:, :, None]
    return draft._replace(probs=certain.at[:, 0].set(0.0))
