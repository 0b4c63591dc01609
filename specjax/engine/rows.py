"""Turn requests into rows of a ``State``: arrays whose shapes all rows of a batch share.

A sampling option that no request of the batch uses is None, so it is not in the compiled program;
one that any request uses is in every row, at its neutral value where a request leaves it off.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.core.sampling import FORBIDDEN, row_key
from specjax.core.types import IDLE, RUNNING, Penalties, Sampling, Text
from specjax.engine.grammar import Grammar
from specjax.engine.options.sampling_params import SamplingParams


class Request(NamedTuple):
    """A validated request: ids in range, limits that fit, stop ids resolved."""

    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    limit: int  # prompt and output together
    stop_ids: tuple[int, ...]
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: Grammar | None = None  # of structured_outputs
    cache_salt: str = ""  # prompts of other salts share nothing that was read
    priority: int = 0  # of waiting requests the lowest runs first


Host = Any  # a NumPy array in a field typed as a JAX array; the program that takes it copies it
IDLE_REQUEST = Request((0,), SamplingParams(temperature=0.0), 0, 1, ())  # fills an empty slot


class Layout(NamedTuple):
    """The shapes and sampling options that all rows of a batch share."""

    vocab_size: int
    depth: int
    num_stop_ids: int
    options: frozenset[str]  # the optional fields of Sampling that are in the program
    num_bad_words: int
    bad_word_length: int
    num_scored_ids: int = 0  # logprob_token_ids; 0: none


def layout(requests: Sequence[Request], vocab_size: int, depth: int) -> Layout:
    """Return the smallest layout that holds all requests."""
    neutral = {
        "min_tokens": lambda p: p.min_tokens == 0,
        "top_k": lambda p: p.top_k < 1,
        "top_p": lambda p: p.top_p == 1,
        "min_p": lambda p: p.min_p == 0,
        "penalties": lambda p: penalties_of(p) == (1.0, 0.0, 0.0),
        "bias": lambda p: not p.logit_bias and p.allowed_token_ids is None,
    }
    options = {name for name, off in neutral.items() if not all(off(r.params) for r in requests)}
    words = [word for request in requests for word in request.bad_words]
    scored = max(len(r.params.logprob_token_ids or ()) for r in requests)
    return Layout(
        vocab_size=vocab_size,
        depth=depth,
        num_stop_ids=bucket(max(len(r.stop_ids) for r in requests), 1),
        options=frozenset(options),
        num_bad_words=bucket(max(len(r.bad_words) for r in requests), 1) if words else 0,
        bad_word_length=bucket(max(map(len, words)), 1) if words else 0,
        num_scored_ids=bucket(scored, 1) if scored else 0,
    )


def bucket(size: int, least: int) -> int:
    """Return the least power of two that holds ``size``, so that few shapes are compiled."""
    return max(least, 1 << max(size - 1, 0).bit_length())


def penalties_of(params: SamplingParams) -> tuple[float, float, float]:
    """Return (repetition, presence, frequency)."""
    return params.repetition_penalty, params.presence_penalty, params.frequency_penalty


def row(request: Request, shape: Layout, capacity: int) -> tuple[Text, Sampling, jax.Array]:
    """Return a request as a batch of one running row, in NumPy arrays.

    The program that allocates its state copies them to the device in one call: array by array a
    request took 2 ms longer.
    """
    tokens: Host = np.zeros((1, capacity), np.int32)
    tokens[0, : len(request.prompt)] = request.prompt
    length, limit = number(len(request.prompt), np.int32), number(request.limit, np.int32)
    text = Text(tokens, length, length, limit, number(RUNNING, np.int32))
    return text, sampling_row(request, shape), row_key(request.seed).reshape(1)


def concatenate(
    each: Sequence[tuple[Text, Sampling, jax.Array]],
) -> tuple[Text, Sampling, jax.Array]:
    """Return one batch with the rows of several, in NumPy arrays."""
    if len(each) == 1:
        return each[0]
    keys = jnp.concatenate([key for *_, key in each])
    laid_out = [(text, sampling) for text, sampling, _ in each]
    return *jax.tree.map(lambda *leaves: np.concatenate(leaves), *laid_out), keys


def idle(batch_size: int, shape: Layout, capacity: int) -> tuple[Text, Sampling, jax.Array]:
    """Return a batch of idle slots, to be filled by ``Driver.insert_row``."""
    empty = idle_row(shape, capacity)
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, batch_size, axis=0), empty)


def idle_row(shape: Layout, capacity: int) -> tuple[Text, Sampling, jax.Array]:
    """Return a batch of one idle row, in NumPy arrays."""
    text, sampling, keys = row(IDLE_REQUEST, shape, capacity)
    return text._replace(reason=number(IDLE, np.int32)), sampling, keys


def number(value: int | float | np.generic, dtype: type = np.float32) -> Host:
    """Return an array with one number, for a batch of one row."""
    return np.full(1, value, dtype)


def sampling_row(request: Request, shape: Layout) -> Sampling:
    """Return a request's sampling parameters as arrays of one row."""
    params, vocab_size, options = request.params, shape.vocab_size, shape.options
    stops: Host = np.full((1, shape.num_stop_ids), vocab_size, np.int32)
    stops[0, : len(request.stop_ids)] = request.stop_ids
    top_k = params.top_k if params.top_k > 0 else vocab_size
    most = params.num_speculative_tokens
    return Sampling(
        temperature=number(params.temperature),
        max_draft=number(shape.depth if most is None else min(most, shape.depth), np.int32),
        stop_ids=stops,
        min_tokens=number(params.min_tokens, np.int32) if "min_tokens" in options else None,
        top_k=number(min(top_k, vocab_size), np.int32) if "top_k" in options else None,
        top_p=number(params.top_p) if "top_p" in options else None,
        min_p=number(params.min_p) if "min_p" in options else None,
        penalties=Penalties(*map(number, penalties_of(params))) if "penalties" in options else None,
        bias=bias_row(params, vocab_size) if "bias" in options else None,
        bad_words=bad_words_row(request, shape) if shape.num_bad_words else None,
        scored_ids=scored_row(params, shape.num_scored_ids) if shape.num_scored_ids else None,
    )


def bias_row(params: SamplingParams, vocab_size: int) -> Host:
    """Return logit_bias and allowed_token_ids as one bias, [1, V]."""
    bias = np.zeros((1, vocab_size), np.float32)
    if params.allowed_token_ids is not None:
        bias[:] = FORBIDDEN
        bias[0, list(params.allowed_token_ids)] = 0.0
    for token, value in (params.logit_bias or {}).items():
        bias[0, token] += value
    return bias


def scored_row(params: SamplingParams, size: int) -> Host:
    """Return logprob_token_ids in a [1, J] array padded with 0."""
    ids = np.zeros((1, size), np.int32)
    wanted = params.logprob_token_ids or ()
    ids[0, : len(wanted)] = wanted
    return ids


def bad_words_row(request: Request, shape: Layout) -> Host:
    """Return a request's bad words, right-aligned in a [1, W, L] array padded with V."""
    words = np.full((1, shape.num_bad_words, shape.bad_word_length), shape.vocab_size, np.int32)
    for i, word in enumerate(request.bad_words):
        words[0, i, -len(word) :] = word
    return words
