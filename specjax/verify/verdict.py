"""What a rule says once it has decided: the accepted path, then one token of the target."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax.types import Draft, Verdict


def emit(
    draft: Draft, path: Int[Array, "B K1"], num_accepted: Int[Array, "B"], last: Int[Array, "B"]
) -> Verdict:
    """Say the tokens of ``path[:, 1 .. num_accepted]``, then ``last``.

    What lies in ``path`` past ``num_accepted`` is garbage, but nodes of the draft.
    """
    index = jnp.arange(path.shape[1])[None]
    following = jnp.take_along_axis(draft.tokens, jnp.roll(path, -1, axis=1), axis=1)
    tokens = jnp.where(index == num_accepted[:, None], last[:, None], following)
    return Verdict(path, tokens, num_accepted)


def emit_chain(draft: Draft, num_accepted: Int[Array, "B"], last: Int[Array, "B"]) -> Verdict:
    """Say the first ``num_accepted`` tokens of a chain, then ``last``."""
    nodes = jnp.arange(draft.tokens.shape[1])[None]
    return emit(draft, jnp.broadcast_to(nodes, draft.tokens.shape), num_accepted, last)
