"""Sampling: logits processors, truncation, probabilities, and random numbers by position.

A field of ``Sampling`` that is None is absent from the compiled program: options that no row uses
cost nothing. Random numbers depend on (row seed, token index, stream) alone; no generator is
carried from step to step.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from specjax.core.ops import log_softmax, row_sums, softmax
from specjax.core.prng import THREEFRY
from specjax.core.topology import ancestors
from specjax.core.types import Draft, Logprobs, Penalties, Sampling, Text

FORBIDDEN = -1e30
MASKED = -1e33  # outside a grammar: below what the other parameters forbid
CHOOSE, ACCEPT, RECOVER, PROPOSE = range(4)  # streams: each use has random numbers of its own


def row_key(seed: int) -> Key[Array, ""]:
    """Return a row's key, from all 64 bits of its seed (``jax.random.key`` drops the upper 32)."""
    words = np.array([(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=THREEFRY)


def noise_keys(
    keys: Key[Array, "B"], positions: Int[Array, "B N"], stream: int
) -> Key[Array, "B N"]:
    """Return a key for each token index and stream: ``fold_in(fold_in(key, index), stream)``."""

    def one(key, position):
        return jax.random.fold_in(jax.random.fold_in(key, position), stream)

    return jax.vmap(jax.vmap(one, (None, 0)))(keys, positions)


def draw(
    sampler: Callable[[Any, tuple[int, ...], Any], Array],
    keys: Key[Array, "B N"],
    size: int,
    wanted: Bool[Array, ""],
) -> Float[Array, "B N size"]:
    """Return ``sampler(key, (size,), float32)`` for each key; zeros if not ``wanted`` (greedy)."""

    def fresh():
        return jax.vmap(jax.vmap(lambda key: sampler(key, (size,), jnp.float32)))(keys)

    return jax.lax.cond(wanted, fresh, lambda: jnp.zeros((*keys.shape, size), jnp.float32))


def exponential(key: Key[Array, ""], shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Return exponential random numbers at rate 1, each from 32 random bits: the least is 2^-33.

    ``jax.random.exponential`` uses 23 bits, and its numbers start at 2^-23: tokens less likely
    than 1e-7, together 0.2% of a large vocabulary, would never be sampled. (Its Gumbel noise in
    mode "high" draws twice as many bits, and took twice as long to compile, in JAX's loops: 1.0 s
    of CPU time, not 0.5.)
    """
    uniform = (jax.random.bits(key, shape).astype(dtype) + 0.5) * 2.0**-32
    return -jnp.log1p(-jnp.minimum(uniform, 1 - 2.0**-24))  # large ones round to 1


def gumbel(
    keys: Key[Array, "B"],
    positions: Int[Array, "B N"],
    stream: int,
    sampling: Sampling,
    vocab_size: int,
) -> Float[Array, "B N V"]:
    """Return Gumbel noise: argmax(logits + T * noise) is a sample of softmax(logits / T)."""

    def sampler(*wanted):
        return -jnp.log(exponential(*wanted))

    hot = jnp.any(sampling.temperature > 0)
    return draw(sampler, noise_keys(keys, positions, stream), vocab_size, hot)


def choose(
    logits: Float[Array, "B N V"], noise: Float[Array, "B N V"], sampling: Sampling
) -> Int[Array, "B N"]:
    """Return argmax(logits + T * noise): a sample, and the most likely token at T = 0."""
    return argmax(logits + sampling.temperature[:, None, None] * noise)


def drafted_path(draft: Draft, vocab_size: int) -> Int[Array, "B N P"]:
    """Return the drafted tokens on the path from the root to each node, V at the other nodes.

    The root is left out: it is part of the committed text.
    """
    on_path = ancestors(draft.parents)[:, :, 1:]
    return jnp.where(on_path, draft.tokens[:, None, 1:], vocab_size)


def constrain(
    logits: Float[Array, "B N V"], path: Int[Array, "B N P"], text: Text, sampling: Sampling
) -> Float[Array, "B N V"]:
    """Apply the sampling parameters but temperature to the logits of each node.

    In vLLM's order: allowed ids and bias, bad words, min_tokens, penalties, then truncation.
    ``path`` is ``drafted_path``: tokens that count as output in penalties and bad words. Where all
    that a grammar allows is forbidden by the other parameters (``min_tokens`` at its end), the
    grammar wins.
    """
    vocab_size = logits.shape[-1]
    depth = (path < vocab_size).sum(axis=-1, dtype=jnp.int32)
    if sampling.bias is not None:
        logits = logits + sampling.bias[:, None]
    if sampling.bad_words is not None:
        banned = complete_bad_words(path, depth, text, sampling.bad_words, vocab_size)
        logits = forbid(logits, banned)
    if sampling.min_tokens is not None:
        early = (text.lengths - text.starts)[:, None] + depth < sampling.min_tokens[:, None]
        banned = jnp.where(early[:, :, None], sampling.stop_ids[:, None], vocab_size)
        logits = forbid(logits, banned)
    if sampling.penalties is not None:
        logits = penalise(logits, path, text, sampling.penalties)
    if sampling.mask is None:
        return truncate(logits, sampling)
    allowed = unpack(sampling.mask, vocab_size)
    logits = truncate(jnp.where(allowed, logits, MASKED), sampling)
    return jnp.where(allowed, logits, MASKED)


def unpack(mask: Int[Array, "B N M"], vocab_size: int) -> Bool[Array, "B N V"]:
    """Return which tokens a mask allows: token v is bit v % 32 of word v // 32."""
    bits = (mask[..., None] >> jnp.arange(32, dtype=jnp.int32)[None, None, None]) & 1
    return bits.reshape(*mask.shape[:2], -1)[..., :vocab_size] > 0


def forbid(logits: Float[Array, "B N V"], ids: Int[Array, "B N S"]) -> Float[Array, "B N V"]:
    """Set the logits of the listed ids to -1e30; V stands for none."""
    rows = jnp.arange(logits.shape[0])[:, None, None]
    nodes = jnp.arange(logits.shape[1])[None, :, None]
    return logits.at[rows, nodes, ids].set(FORBIDDEN, mode="drop")


def penalise(
    logits: Float[Array, "B N V"], path: Int[Array, "B N P"], text: Text, penalties: Penalties
) -> Float[Array, "B N V"]:
    """Apply repetition, frequency and presence penalties for the text and each node's path."""
    batch, nodes, vocab_size = logits.shape
    rows, index = jnp.arange(batch)[:, None], jnp.arange(text.tokens.shape[1])[None]
    written = (index >= text.starts[:, None]) & (index < text.lengths[:, None])
    prompt = jnp.where(index < text.starts[:, None], text.tokens, vocab_size)
    output = jnp.where(written, text.tokens, vocab_size)
    none = jnp.zeros((batch, vocab_size), jnp.float32)
    in_prompt = none.at[rows, prompt].set(1.0, mode="drop") > 0
    counts = none.at[rows, output].add(1.0, mode="drop")[:, None]
    drafted = jnp.zeros(logits.shape, jnp.float32)
    counts = counts + drafted.at[rows[:, :, None], jnp.arange(nodes)[None, :, None], path].add(
        1.0, mode="drop"
    )
    factor = penalties.repetition[:, None, None]
    factor = jnp.where(in_prompt[:, None] | (counts > 0), factor, 1.0)
    logits = jnp.where(logits > 0, logits / factor, logits * factor)
    logits = logits - penalties.frequency[:, None, None] * counts
    return logits - penalties.presence[:, None, None] * (counts > 0)


def complete_bad_words(
    path: Int[Array, "B N P"],
    depth: Int[Array, "B N"],
    text: Text,
    words: Int[Array, "B W L"],
    vocab_size: int,
) -> Int[Array, "B N W"]:
    """Return the last token of each bad word whose other tokens precede the node, else V.

    They may be output tokens and drafted ones, never those of the prompt.
    """
    rank = jnp.flip(jnp.cumsum(jnp.flip(path < vocab_size, -1), -1), -1)  # 1: the last
    matches = words[:, None, :, -1] < vocab_size
    for distance in range(1, words.shape[-1]):
        here = (rank == distance) & (path < vocab_size)
        drafted = jnp.where(here, path, 0).sum(axis=-1, dtype=jnp.int32)
        place = text.lengths[:, None] + depth - distance
        known = place >= text.starts[:, None]
        index = jnp.clip(place, 0, text.tokens.shape[1] - 1)
        written = jnp.take_along_axis(text.tokens, index, axis=1)
        token = jnp.where(distance <= depth, drafted, jnp.where(known, written, -1))
        wanted = words[:, None, :, -1 - distance]
        matches &= (wanted == vocab_size) | (wanted == token[:, :, None])
    return jnp.where(matches, words[:, None, :, -1], vocab_size)


def truncate(logits: Float[Array, "B N V"], sampling: Sampling) -> Float[Array, "B N V"]:
    """Apply min-p, top-k and top-p at the row's temperature: logits cut off become -1e30.

    Each threshold is found by bisection over the 2^30 bit patterns of floats in [0, 1], which
    order as the floats do: exact, without sorting. Ties at a threshold are all kept.
    """
    top_k, top_p, min_p = sampling.top_k, sampling.top_p, sampling.min_p
    if top_k is None and top_p is None and min_p is None:
        return logits
    if top_k is not None and top_p is not None and min_p is None:
        return top_k_top_p(logits, sampling.temperature, top_k, top_p)
    return cut_off(logits, sampling.temperature, top_k, top_p, min_p)


@jax.jit
def top_k_top_p(
    logits: Float[Array, "B N V"],
    temperature: Float[Array, "B"],
    top_k: Int[Array, "B"],
    top_p: Float[Array, "B"],
) -> Float[Array, "B N V"]:
    """Return the logits with what top-k, then top-p cut off set to -1e30; others are unchanged.

    ``temperature`` only decides what top-p cuts off. A fusible op: a backend may have a kernel.
    """
    return cut_off(logits, temperature, top_k, top_p, None)


def cut_off(
    logits: Float[Array, "B N V"],
    temperature: Float[Array, "B"],
    top_k: Int[Array, "B"] | None,
    top_p: Float[Array, "B"] | None,
    min_p: Float[Array, "B"] | None,
) -> Float[Array, "B N V"]:
    """Set to -1e30 what min-p, top-k and top-p cut off, in vLLM's order; None: not applied."""
    temperature = jnp.maximum(temperature, 1e-5)[:, None, None]
    weights = jnp.exp((logits - logits.max(axis=-1, keepdims=True)) / temperature)
    if min_p is not None:
        weights = jnp.where(weights >= min_p[:, None, None], weights, 0.0)
    if top_k is not None:
        ones = jnp.ones_like(weights)
        goal = jnp.minimum(top_k, logits.shape[-1]).astype(jnp.float32)[:, None]
        weights = jnp.where(weights >= threshold(weights, ones, goal), weights, 0.0)
    if top_p is not None:
        share = top_p[:, None]
        kept = weights >= threshold(weights, weights, share * row_sums(weights))
        weights = jnp.where(kept | (share >= 1)[:, :, None], weights, 0.0)
    return jnp.where(weights > 0, logits, FORBIDDEN)


def threshold(
    weights: Float[Array, "B N V"], mass: Float[Array, "B N V"], goal: Float[Array, "B #N"]
) -> Float[Array, "B N 1"]:
    """Return the largest t for which ``mass`` summed where weights >= t reaches the goal, or 0."""

    def halve(_, bounds):
        low, high = bounds
        middle = low + jax.lax.div(high - low, 2)  # ">> 1" in one operation
        bar = jax.lax.bitcast_convert_type(middle, jnp.float32)[:, :, None]
        reached = row_sums(jnp.where(weights >= bar, mass, 0.0)) >= goal
        return jnp.where(reached, middle, low), jnp.where(reached, high, middle)

    shape = weights.shape[:2]
    one = int(np.float32(1.0).view(np.int32))
    start = (jnp.zeros(shape, jnp.int32), jnp.full(shape, one + 1, jnp.int32))
    low, _ = jax.lax.fori_loop(0, 30, halve, start)
    return jax.lax.bitcast_convert_type(low, jnp.float32)[:, :, None]


def compute_probs(logits: Float[Array, "B N V"], sampling: Sampling) -> Float[Array, "B N V"]:
    """Return the probabilities softmax(logits / T); one-hot at temperature 0."""
    temperature = sampling.temperature[:, None, None]
    soft = softmax(logits / jnp.maximum(temperature, 1e-5))
    index = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    hard = (index == argmax(logits)[:, :, None]).astype(jnp.float32)
    return jnp.where(temperature > 0, soft, hard)


def argmax(logits: Float[Array, "*B V"]) -> Int[Array, "*B"]:
    """Return ``jnp.argmax`` over the last axis (the first of equals), found by blocks.

    XLA's argmax compares one number at a time on CPUs; its max, taken of each block, does not.
    """
    size = logits.shape[-1]
    block = math.gcd(size, 1024)
    blocks = logits.reshape(*logits.shape[:-1], size // block, block)
    best = jnp.argmax(blocks.max(axis=-1), axis=-1, keepdims=True)
    inside = jnp.take_along_axis(blocks, best[..., None], axis=-2)[..., 0, :]
    return (best[..., 0] * block + jnp.argmax(inside, axis=-1)).astype(jnp.int32)


def warp(
    logits: Float[Array, "B N V"], draft: Draft, text: Text, sampling: Sampling
) -> Float[Array, "B N V"]:
    """Return the distribution that the target samples from after each node of a draft."""
    path = drafted_path(draft, logits.shape[-1])
    return compute_probs(constrain(logits, path, text, sampling), sampling)


def gather_logprobs(
    logits: Float[Array, "B P V"],
    tokens: Int[Array, "B P"],
    num_logprobs: int,
    scored_ids: Int[Array, "B J"] | None = None,
) -> Logprobs:
    """Return each token's log probability and rank, and the ``num_logprobs`` most likely ones.

    The log probabilities of ``scored_ids`` come last, where there are any.
    """
    logprobs = log_softmax(logits)
    own = jnp.take_along_axis(logprobs, tokens[:, :, None], axis=-1)
    best, likeliest = jax.lax.top_k(logprobs, min(num_logprobs, logits.shape[-1]))
    ids, values = [tokens[:, :, None], likeliest.astype(jnp.int32)], [own, best]
    if scored_ids is not None:
        each = (*tokens.shape, scored_ids.shape[1])
        ids.append(jnp.broadcast_to(scored_ids[:, None], each))
        values.append(jnp.take_along_axis(logprobs, ids[-1], axis=-1))
    return Logprobs(
        ids=jnp.concatenate(ids, axis=-1),
        values=jnp.concatenate(values, axis=-1),
        ranks=(logprobs >= own).sum(axis=-1, dtype=jnp.int32),
    )
