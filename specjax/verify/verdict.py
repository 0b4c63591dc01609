"""Verdicts made of an accepted path and one token of the target."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax.core.types import Draft, Verdict


def emit(
    draft: Draft, path: Int[Array, "B K1"], num_accepted: Int[Array, "B"], last: Int[Array, "B"]
) -> Verdict:
    """Return the verdict that emits the tokens of ``path[:, 1 .. num_accepted]``, then ``last``.

    Entries of ``path`` past ``num_accepted`` are any nodes of the draft.
    """
    index = jnp.arange(path.shape[1])[None]
    following = jnp.take_along_axis(draft.tokens, jnp.roll(path, -1, axis=1), axis=1)
    tokens = jnp.where(index == num_accepted[:, None], last[:, None], following)
    return Verdict(path, tokens, num_accepted)


def emit_chain(draft: Draft, num_accepted: Int[Array, "B"], last: Int[Array, "B"]) -> Verdict:
    """Return the verdict that emits the first ``num_accepted`` tokens of a chain, then ``last``."""
    nodes = jnp.arange(draft.tokens.shape[1])[None]
    return emit(draft, jnp.broadcast_to(nodes, draft.tokens.shape), num_accepted, last)
