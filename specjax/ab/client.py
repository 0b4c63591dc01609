"""Records of streamed completions; a failed stream becomes a record of its error."""

from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from specjax.ab.records import Record, failed, sha256
from specjax.core.metrics import distinct_bigrams
from specjax.measure.streaming import Stream, StreamFailed, stream_completion

METRICS = "mean_acceptance_length"  # a key of vLLM's per-request speculative metrics


async def complete(
    session: aiohttp.ClientSession, path: str, body: Mapping[str, Any], prompt: str, began: float
) -> tuple[Record, str]:
    """Return the record and the text of one streamed request.

    ``prompt`` is the prompt's id, ``began`` the ``time.perf_counter()`` at which the unit began.
    """
    try:
        stream = await stream_completion(session, path, body)
    except StreamFailed as error:
        return failed(prompt, error.sent - began, error.end, str(error)), ""
    return to_record(stream, prompt, began), stream.text


def to_record(stream: Stream, prompt: str, began: float) -> Record:
    """Return the record of a stream; one without a token count is recorded as an error.

    ``prompt`` is the prompt's id, ``began`` the time from which ``Record.sent`` counts.
    """
    sent, end = stream.sent - began, stream.end
    num_ids = len(stream.tokens) if stream.tokens is not None else None
    num = stream.output_tokens if stream.output_tokens is not None else num_ids
    if num is None:
        return failed(prompt, sent, end, "no usage: the server does not count its tokens")
    if num < 1 or not stream.times:
        return failed(prompt, sent, end, "no tokens")
    if num_ids is not None and num_ids != num:
        return failed(prompt, sent, end, f"usage says {num} tokens, the chunks had {num_ids}")
    words: Sequence[Any] = stream.text.split() if stream.tokens is None else stream.tokens
    metrics = stream.metrics.get("speculative_decoding") or {}
    known = metrics if METRICS in metrics else {}
    return Record(
        prompt=prompt,
        sent=sent,
        times=tuple(stream.times),
        counts=tuple(stream.counts),
        end=end,
        input_tokens=stream.input_tokens or 0,
        output_tokens=num,
        finish_reason=stream.finish_reason,
        tokens=None if stream.tokens is None else tuple(stream.tokens),
        text_sha256=sha256(stream.text),
        distinct_bigrams=distinct_bigrams(words),
        retokenized=None,
        correct=None,
        accepted=as_counts(known.get("per_step_accepted")),
        drafted=as_counts(known.get("per_step_drafted")),
        error=None,
    )


def as_counts(values: Any) -> tuple[int, ...] | None:
    """Return per-step counts as a tuple of int; None if there are none."""
    return None if values is None else tuple(int(one) for one in values)
