"""No drafting: the root alone, which is plain decoding."""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from specjax.core.topology import chain_parents
from specjax.core.types import Draft, Drafter, Propose, PyTree, Sampling, Text


def chain(
    text: Text,
    proposed: Int[Array, "B K"],
    valid: Bool[Array, "B K"],
    probs: Float[Array, "B N V"] | None = None,
) -> Draft:
    """Return the draft of K proposed tokens in a chain after the last committed token."""
    root = jnp.take_along_axis(text.tokens, text.lengths[:, None] - 1, axis=1)
    return Draft(
        tokens=jnp.concatenate([root, proposed], axis=1),
        parents=chain_parents(proposed.shape[0], proposed.shape[1] + 1),
        valid=jnp.concatenate([jnp.ones_like(root, dtype=bool), valid], axis=1),
        probs=probs,
    )


def propose(
    params: PyTree, state: PyTree, text: Text, sampling: Sampling, keys: Key[Array, "B"],
    window: int,
) -> tuple[Draft, Any]:  # fmt: skip
    """Return the draft of no tokens (``types.Propose``)."""
    nothing = jnp.zeros((text.tokens.shape[0], 0), jnp.int32)
    return chain(text, nothing, nothing.astype(bool)), state


@functools.cache
def observe_only(drafter: Drafter) -> Drafter:
    """Return a drafter that proposes nothing, and keeps the state of ``drafter`` up to date."""
    return drafter._replace(propose=propose, depth=0, nodes=1)


def stateless(propose: Propose, depth: int) -> Drafter:
    """Return the drafter of chains of up to ``depth`` tokens that keeps nothing between rounds."""
    return Drafter(
        init=lambda params, batch_size, capacity: (),
        propose=propose,
        observe=lambda params, state, text, observation, window: state,
        depth=depth,
        nodes=depth + 1,
    )


none = stateless(propose, 0)
