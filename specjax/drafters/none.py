"""No drafting: the root alone, which is plain decoding."""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specjax.topology import chain_parents
from specjax.types import Draft, Drafter, Text


def chain(text: Text, proposed: Int[Array, "B K"], valid: Bool[Array, "B K"], probs=None) -> Draft:
    """Hang a chain of proposals under the last committed token."""
    root = jnp.take_along_axis(text.tokens, text.lengths[:, None] - 1, axis=1)
    return Draft(
        tokens=jnp.concatenate([root, proposed], axis=1),
        parents=chain_parents(proposed.shape[0], proposed.shape[1] + 1),
        valid=jnp.concatenate([jnp.ones_like(root, dtype=bool), valid], axis=1),
        probs=probs,
    )


def propose(params, state, text, sampling, keys, window):
    """Propose nothing."""
    nothing = jnp.zeros((text.tokens.shape[0], 0), jnp.int32)
    return chain(text, nothing, nothing.astype(bool)), state


@functools.cache
def silent(drafter: Drafter) -> Drafter:
    """Build the drafter that proposes nothing and keeps another one's state up to date."""
    return drafter._replace(propose=propose, depth=0, nodes=1)


none = Drafter(
    init=lambda params, batch_size, capacity: (),
    propose=propose,
    observe=lambda params, state, text, seen, window: state,
    depth=0,
    nodes=1,
)
