"""From logits to a chain of proposals, the same for every model that drafts token by token.

``draft_sample_method``: "greedy" proposes the most likely tokens; "coupled" samples with the
very noise the target will use, so that both tend to choose alike (drafter-invariant
speculative decoding, Daliri, Musco & Suresh 2025); "probabilistic" samples from
softmax(logits / T) with noise of its own and reports that law, for rejection sampling.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from specjax import sampling as s
from specjax.drafters.none import chain
from specjax.types import Draft, PyTree, Text


def pick(
    logits: Float[Array, "B V"],
    path: Int[Array, "B K"],
    level: Int[Array, ""] | int,
    text: Text,
    sampling: s.Sampling,
    keys: Array,
    method: str,
) -> tuple[Int[Array, "B"], Float[Array, "B V"] | None]:
    """Choose the draft token at a level, given those before it; return its law if it has one."""
    logits, vocab_size = logits[:, None], logits.shape[-1]
    position = text.lengths[:, None] + level
    if method == "coupled":
        noise = s.gumbel(keys, position, s.CHOOSE, sampling, vocab_size)
        logits = s.constrain(logits, path[:, None], text, sampling)
        return s.choose(logits, noise, sampling)[:, 0], None
    if method == "probabilistic":
        noise = s.gumbel(keys, position, s.PROPOSE, sampling, vocab_size)
        return s.choose(logits, noise, sampling)[:, 0], s.law(logits, sampling)[:, 0]
    return jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32), None


def unroll(
    carry: PyTree,
    logits: Callable,
    read: Callable,
    depth: int,
    text: Text,
    sampling: s.Sampling,
    keys: Array,
    method: str,
    vocab_size: int,
    max_model_len: int,
) -> tuple[Draft, PyTree]:
    """Propose K tokens by K - 1 one-token passes; return the draft and the last carry.

    ``logits(carry)`` [B, V] scores the next token; ``read(carry, token)`` takes it in.
    Nothing is proposed at places the model cannot reach (``max_model_len``).
    """

    def extend(state, level):
        carry, path = state
        token, law = pick(logits(carry), path, level, text, sampling, keys, method)
        return (read(carry, token), path.at[:, level].set(token)), law

    path = jnp.full((text.tokens.shape[0], depth), vocab_size, jnp.int32)
    (carry, path), laws = lax.scan(extend, (carry, path), jnp.arange(depth - 1))
    token, law = pick(logits(carry), path, depth - 1, text, sampling, keys, method)
    path = path.at[:, -1].set(token)
    probs = None
    if laws is not None and law is not None:
        probs = with_root(jnp.concatenate([laws, law[None]]))
    return chain(text, path, reachable(text, depth, max_model_len), probs), carry


def with_root(laws: Float[Array, "K B V"]) -> Float[Array, "B N V"]:
    """Put the root, which has no law, before the levels' laws."""
    return jnp.concatenate([jnp.zeros_like(laws[:1]), laws]).swapaxes(0, 1)


def reachable(text: Text, depth: int, max_model_len: int) -> Bool[Array, "B K"]:
    """Mark the places below ``max_model_len``."""
    return text.lengths[:, None] + jnp.arange(depth)[None] < max_model_len


def last_of(
    seen: Float[Array, "B P D"], count: Int[Array, "B"], before: Float[Array, "B D"]
) -> Float[Array, "B D"]:
    """Return the last real one of what was seen, or what was there before if none is."""
    index = jnp.maximum(count - 1, 0)[:, None, None]
    last = jnp.take_along_axis(seen, index, axis=1)[:, 0]
    return jnp.where((count > 0)[:, None], last, before)
