"""The kernel's arguments beside a draft, and the distribution of plain decoding for them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.audit.prefixes import num_contexts, spell
from specjax.core import sampling as s
from specjax.core.types import RUNNING, PyTree, Sampling, Text


class Request(NamedTuple):
    """One row's text and sampling options, with the logits of a target given as a table."""

    logits: np.ndarray  # [cases, C, V] of the target, given every prefix
    text: Text
    sampling: Sampling


def plain_request(p_tree: np.ndarray, K: int) -> Request:
    """Return a request whose distribution is p: temperature 1, no penalties, no filters."""
    size, one = p_tree.shape[-1], jnp.ones(1, jnp.int32)
    text = Text(jnp.zeros((1, K + 2), jnp.int32), one, one, one * (K + 2), one * RUNNING)
    sampling = Sampling(jnp.ones(1), one * K, jnp.full((1, 1), size, jnp.int32))
    with np.errstate(divide="ignore"):
        return Request(np.maximum(np.log(p_tree), s.FORBIDDEN), text, sampling)


def plain_distribution(request: Request) -> np.ndarray:
    """Return plain decoding's distribution of the next token [cases, C, V], given every prefix."""
    num, size = request.logits.shape[1:]
    depth = next(k for k in range(num) if num_contexts(size, k) == num)
    words, start = spell(size, depth), int(request.text.lengths[0])
    text, sampling = repeat(request.text, num), repeat(request.sampling, num)
    tokens = jnp.concatenate([text.tokens[:, :start], jnp.asarray(words, jnp.int32)], axis=1)
    lengths = jnp.asarray(start + (words >= 0).sum(axis=1), jnp.int32)
    text, nothing = text._replace(tokens=tokens, lengths=lengths), jnp.zeros((num, 1, 0), jnp.int32)

    @jax.jit
    def distribution(logits):
        constrained = s.constrain(logits[:, None], nothing, text, sampling)
        return s.compute_probs(constrained, sampling)[:, 0]

    return np.stack([distribution(jnp.asarray(one, jnp.float32)) for one in request.logits]).astype(
        float
    )


def repeat(row: PyTree, times: int) -> PyTree:
    """Return a batch that repeats one row."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), row)
