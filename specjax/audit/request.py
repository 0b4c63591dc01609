"""What the kernel is given beside a draft, and the law by which plain decoding answers it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling as s
from specjax.audit.prefixes import num_contexts, spell
from specjax.types import RUNNING, Text


class Request(NamedTuple):
    """A request of one row, to a target that is a table."""

    logits: np.ndarray  # [cases, C, V] of the target, given every prefix
    text: Text
    sampling: s.Sampling


def plain_request(p_tree: np.ndarray, K: int) -> Request:
    """Make a request of p itself: temperature 1, nothing penalised, nothing cut off."""
    size, one = p_tree.shape[-1], jnp.ones(1, jnp.int32)
    text = Text(jnp.zeros((1, K + 2), jnp.int32), one, one, one * (K + 2), one * RUNNING)
    sampling = s.Sampling(jnp.ones(1), one * K, jnp.full((1, 1), size, jnp.int32))
    with np.errstate(divide="ignore"):
        return Request(np.maximum(np.log(p_tree), s.FORBIDDEN), text, sampling)


def plain_law(request: Request) -> np.ndarray:
    """Return the law [cases, C, V] by which plain decoding answers, given every prefix."""
    num, size = request.logits.shape[1:]
    depth = next(k for k in range(num) if num_contexts(size, k) == num)
    words, start = spell(size, depth), int(request.text.lengths[0])
    text, sampling = repeat(request.text, num), repeat(request.sampling, num)
    tokens = jnp.concatenate([text.tokens[:, :start], jnp.asarray(words, jnp.int32)], axis=1)
    lengths = jnp.asarray(start + (words >= 0).sum(axis=1), jnp.int32)
    text, nothing = text._replace(tokens=tokens, lengths=lengths), jnp.zeros((num, 1, 0), jnp.int32)

    @jax.jit
    def law(logits):
        return s.law(s.constrain(logits[:, None], nothing, text, sampling), sampling)[:, 0]

    return np.stack([law(jnp.asarray(one, jnp.float32)) for one in request.logits]).astype(float)


def repeat(row, times: int):
    """Make a batch of one row."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), row)
