"""From requests to rows: what one request becomes inside a ``State``.

A field that no request of the batch wants is None, so it is not in the compiled program;
one that any wants is in every row, at its neutral value where a row asks for nothing.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.engine.params import SamplingParams
from specjax.sampling import FORBIDDEN, Penalties, Sampling, row_key
from specjax.types import IDLE, RUNNING, Text


class Request(NamedTuple):
    """A validated request: ids in range, limits that fit, stop ids resolved."""

    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    limit: int  # prompt and output together
    stop_ids: tuple[int, ...]
    bad_words: tuple[tuple[int, ...], ...] = ()


Host = Any  # a NumPy array, in the place of JAX's until a program takes it
NOBODY = Request((0,), SamplingParams(temperature=0.0), 0, 1, ())  # not even for noise


class Layout(NamedTuple):
    """The shape every row of a batch shares."""

    vocab_size: int
    depth: int
    num_stop_ids: int
    wanted: frozenset[str]  # the optional fields of Sampling that are present
    num_bad_words: int
    bad_word_length: int


def layout(requests: Sequence[Request], vocab_size: int, depth: int) -> Layout:
    """Find the smallest layout that serves all requests."""
    neutral = {
        "min_tokens": lambda p: p.min_tokens == 0,
        "top_k": lambda p: p.top_k < 1,
        "top_p": lambda p: p.top_p == 1,
        "min_p": lambda p: p.min_p == 0,
        "penalties": lambda p: penalties_of(p) == (1.0, 0.0, 0.0),
        "bias": lambda p: not p.logit_bias and p.allowed_token_ids is None,
    }
    wanted = {name for name, off in neutral.items() if not all(off(r.params) for r in requests)}
    words = [word for request in requests for word in request.bad_words]
    return Layout(
        vocab_size=vocab_size,
        depth=depth,
        num_stop_ids=bucket(max(len(r.stop_ids) for r in requests), 1),
        wanted=frozenset(wanted),
        num_bad_words=bucket(max(len(r.bad_words) for r in requests), 1) if words else 0,
        bad_word_length=bucket(max(map(len, words)), 1) if words else 0,
    )


def bucket(size: int, least: int) -> int:
    """Round up to a power of two, so that few shapes are compiled."""
    return max(least, 1 << max(size - 1, 0).bit_length())


def penalties_of(params: SamplingParams) -> tuple[float, float, float]:
    """Return (repetition, presence, frequency)."""
    return params.repetition_penalty, params.presence_penalty, params.frequency_penalty


def row(request: Request, shape: Layout, capacity: int) -> tuple[Text, Sampling, jax.Array]:
    """Lay one request out as a batch of one running row, on the host.

    The program that allocates its state takes it along: laid out on the device, every number by
    itself, a request took 2 ms longer.
    """
    tokens: Host = np.zeros((1, capacity), np.int32)
    tokens[0, : len(request.prompt)] = request.prompt
    length, limit = number(len(request.prompt), np.int32), number(request.limit, np.int32)
    text = Text(tokens, length, length, limit, number(RUNNING, np.int32))
    return text, sampling_row(request, shape), row_key(request.seed).reshape(1)


def beside(
    each: Sequence[tuple[Text, Sampling, jax.Array]],
) -> tuple[Text, Sampling, jax.Array]:
    """Lay rows of one shape side by side, on the host."""
    if len(each) == 1:
        return each[0]
    keys = jnp.concatenate([key for *_, key in each])
    laid_out = [(text, sampling) for text, sampling, _ in each]
    return *jax.tree.map(lambda *leaves: np.concatenate(leaves), *laid_out), keys


def idle(batch_size: int, shape: Layout, capacity: int) -> tuple[Text, Sampling, jax.Array]:
    """Lay out a batch of idle slots, to be filled by ``cache.admit``."""
    empty = nobody(shape, capacity)
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, batch_size, axis=0), empty)


def nobody(shape: Layout, capacity: int) -> tuple[Text, Sampling, jax.Array]:
    """Lay out one idle row."""
    text, sampling, keys = row(NOBODY, shape, capacity)
    return text._replace(reason=number(IDLE, np.int32)), sampling, keys


def number(value, dtype: type = np.float32) -> Host:
    """Lay out one number for one row."""
    return np.full(1, value, dtype)


def sampling_row(request: Request, shape: Layout) -> Sampling:
    """Turn a request's parameters into arrays of one row."""
    params, vocab_size, wanted = request.params, shape.vocab_size, shape.wanted
    stops: Host = np.full((1, shape.num_stop_ids), vocab_size, np.int32)
    stops[0, : len(request.stop_ids)] = request.stop_ids
    top_k = params.top_k if params.top_k > 0 else vocab_size
    return Sampling(
        temperature=number(params.temperature),
        max_draft=number(shape.depth, np.int32),
        stop_ids=stops,
        min_tokens=number(params.min_tokens, np.int32) if "min_tokens" in wanted else None,
        top_k=number(min(top_k, vocab_size), np.int32) if "top_k" in wanted else None,
        top_p=number(params.top_p) if "top_p" in wanted else None,
        min_p=number(params.min_p) if "min_p" in wanted else None,
        penalties=Penalties(*map(number, penalties_of(params))) if "penalties" in wanted else None,
        bias=bias_row(params, vocab_size) if "bias" in wanted else None,
        bad_words=bad_words_row(request, shape) if shape.num_bad_words else None,
    )


def bias_row(params: SamplingParams, vocab_size: int) -> Host:
    """Merge logit_bias and allowed_token_ids into one [1, V] array."""
    bias = np.zeros((1, vocab_size), np.float32)
    if params.allowed_token_ids is not None:
        bias[:] = FORBIDDEN
        bias[0, list(params.allowed_token_ids)] = 0.0
    for token, value in (params.logit_bias or {}).items():
        bias[0, token] += value
    return bias


def bad_words_row(request: Request, shape: Layout) -> Host:
    """Right-align the row's bad words in a [1, W, L] array padded with V."""
    words = np.full((1, shape.num_bad_words, shape.bad_word_length), shape.vocab_size, np.int32)
    for i, word in enumerate(request.bad_words):
        words[0, i, -len(word) :] = word
    return words
