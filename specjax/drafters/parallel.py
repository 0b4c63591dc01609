"""Propose a chain or tree from the logits of all K places, which one forward pass has given.

DFlash, DSpark, P-EAGLE and PARD run their model once per round. The distribution of a place then
does not depend on the drafted tokens before it, but for what DSpark's Markov head adds for one.
A dynamic tree over these logits keeps the likeliest paths (DDTree, arXiv:2604.12989).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from specjax.core.types import Confidence, Draft, Follow, PyTree, Sampling, Text
from specjax.drafters.grow import grow
from specjax.drafters.tree import Tree


class Place(NamedTuple):
    """What says a node's distribution: its token, and how deep it is."""

    tokens: Int[Array, "B W"]
    level: Int[Array, "B W"]  # the same for all


def grow_at_once(
    tree: Tree,
    logits: Float[Array, "B K V"],
    text: Text,
    sampling: Sampling,
    keys: Key[Array, "B"],
    method: str,
    max_model_len: int,
    follow: Follow | None = None,
    params: PyTree = None,
    hidden: Float[Array, "B K D"] | None = None,
    confidence: Confidence | None = None,
) -> Draft:
    """Return the draft of known logits.

    Args:
        tree: which nodes to draft, K deep.
        logits: the logits of draft tokens 1 .. K.
        text: that the draft continues.
        sampling: used by the methods that sample.
        keys: one per row.
        method: ``draft_sample_method`` (``drafters.grow``).
        max_model_len: nothing is proposed past it.
        follow: returns what the token before adds to the logits (DSpark).
        params: of ``follow`` and ``confidence``.
        hidden: what ``confidence`` reads of each place.
        confidence: tells how likely a token is to be accepted (DSpark).
    """

    def read(carry, frontier, level):
        return carry, Place(frontier.tokens, jnp.full_like(frontier.tokens, level))

    def logits_after(place: Place):
        own = jnp.take(logits, place.level[0, 0], axis=1)[:, None]
        own = jnp.broadcast_to(own, (*place.tokens.shape, own.shape[-1]))
        return own if follow is None else own + follow(params, place.tokens)

    def sure_after(place: Place):
        assert confidence is not None
        assert hidden is not None
        own = jnp.take(hidden, place.level[0, 0], axis=1)[:, None]
        own = jnp.broadcast_to(own, (*place.tokens.shape, own.shape[-1]))
        return jax.nn.log_sigmoid(confidence(params, own, place.tokens))

    last = jnp.take_along_axis(text.tokens, text.lengths[:, None] - 1, axis=1)
    root = Place(last, jnp.zeros_like(last))
    draft, _ = grow(
        tree, (), root, read, logits_after, text, sampling, keys, method, max_model_len,
        confidence=None if confidence is None else sure_after,
    )  # fmt: skip
    return draft


def masks(
    mask_token_id: int | None, number: int, start: Int[Array, "B"]
) -> tuple[Int[Array, "B N"], Int[Array, "B N"]]:
    """Return the tokens and positions of masks that begin at position ``start``."""
    assert mask_token_id is not None
    positions = start[:, None] + jnp.arange(number)[None]
    return jnp.full_like(positions, mask_token_id), positions
