"""Stream one completion from an OpenAI-compatible server, and say when every token came.

aiohttp, not httpx: 32 streams of a batched server get their chunks at the same moment, and one
chunk took httpx 0.5 ms of this process's time, aiohttp 0.06 ms.

While the stream runs only bytes and times are kept; they are read after it has ended, so that
measuring 32 streams at once delays none of them. What is malformed, late, refused or cut off
becomes a record of its error.
"""

import json
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiohttp
from yarl import URL

from specjax.ab.records import Record, failed, sha256
from specjax.metrics import distinct_bigrams

DONE = b"[DONE]"
METRICS = "mean_acceptance_length"  # tells vLLM's per-request speculative metrics


class Stream(NamedTuple):
    """What a stream brought, put together."""

    text: str
    times: list[float]
    counts: list[int]  # tokens per time; [] unless each chunk told
    tokens: list[int] | None
    input_tokens: int | None
    output_tokens: int | None
    finish_reason: str | None
    metrics: Mapping[str, Any] | None


def open_client(
    url: str, api_key: str | None, timeout: float, connections: int
) -> aiohttp.ClientSession:
    """Open a client for many streams at once; local servers are reached without a proxy."""
    trace = aiohttp.TraceConfig()
    trace.on_request_chunk_sent.append(note_sent)
    return aiohttp.ClientSession(
        base_url=url.rstrip("/").removesuffix("/v1"),
        headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
        timeout=aiohttp.ClientTimeout(total=timeout),
        trace_configs=[trace],
        connector=aiohttp.TCPConnector(limit=connections + 1),
        trust_env=URL(url).host not in ("localhost", "127.0.0.1", "::1"),
    )


async def note_sent(session, context: Any, params: Any) -> None:
    """Start a request's clock: waiting for our own other requests is not the server's time."""
    context.trace_request_ctx.at = time.perf_counter()


async def complete(
    client: aiohttp.ClientSession, path: str, body: Mapping[str, Any], prompt: str, began: float
) -> tuple[Record, str]:
    """Send one request; return its record and its text.

    ``prompt`` is the prompt's id, ``began`` the ``time.perf_counter()`` that times count from.
    """
    # Encoded before the clock starts: a server is not to blame for our JSON.
    content = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
    headers = {"Content-Type": "application/json"}
    pieces: list[tuple[float, bytes]] = []
    sent = SimpleNamespace(at=time.perf_counter())  # when the last byte left, once it has

    def fail(error: str) -> tuple[Record, str]:
        return failed(prompt, sent.at - began, time.perf_counter() - sent.at, error), ""

    try:
        request = client.post(path, data=content, headers=headers, trace_request_ctx=sent)
        async with request as answer:
            if answer.status != 200:
                said = await answer.text(errors="replace")
                return fail(f"HTTP {answer.status}: {' '.join(said.split()):.200}")
            async for piece in answer.content.iter_any():
                pieces.append((time.perf_counter() - sent.at, piece))
    except TimeoutError:
        return fail("timeout")
    except aiohttp.ClientConnectorError:
        return fail("unreachable")
    except aiohttp.ClientError as error:
        return fail(f"connection lost: {type(error).__name__}")
    end = time.perf_counter() - sent.at
    try:
        stream = put_together(pieces)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        return fail(f"malformed stream: {error}")
    return to_record(stream, prompt, sent.at - began, end), stream.text


def put_together(pieces: Sequence[tuple[float, bytes]]) -> Stream:
    """Read the events of a stream; an event came when its last byte did.

    Raises ValueError or KeyError for what is no stream of completions, or has no end.
    """
    text, times, counts, ids = [], [], [], []
    usage, reason, metrics, told, ended = None, None, None, True, False
    for now, data in events(pieces):
        if data == DONE:
            ended = True
            continue
        event = json.loads(data)
        if "error" in event:
            raise ValueError(f"the server said {event['error']!r:.100}")
        usage, metrics = event.get("usage") or usage, event.get("metrics") or metrics
        for choice in event["choices"]:
            reason = choice.get("finish_reason") or reason
            said = choice.get("text") if "text" in choice else content(choice["delta"])
            tokens = choice.get("token_ids")
            if not said and not tokens:
                continue
            text.append(said or "")
            if times and now == times[-1]:
                counts[-1] += len(tokens or ())
            else:
                times.append(now)
                counts.append(len(tokens or ()))
            told &= tokens is not None
            ids += tokens or []
    if not ended and reason is None:
        raise ValueError("it ended before its last event")
    metrics = (metrics or {}).get("speculative_decoding")
    return Stream(
        text="".join(text),
        times=times,
        counts=counts if told else [],
        tokens=ids if told else None,
        input_tokens=(usage or {}).get("prompt_tokens"),
        output_tokens=(usage or {}).get("completion_tokens"),
        finish_reason=reason,
        metrics=metrics if metrics and METRICS in metrics else None,
    )


def content(delta: Mapping[str, Any]) -> str:
    """Return what a chat chunk says, its reasoning included."""
    return (delta.get("reasoning_content") or delta.get("reasoning") or "") + (
        delta.get("content") or ""
    )


def events(pieces: Sequence[tuple[float, bytes]]):
    """Yield (when its last byte came, data) of every server-sent event."""
    rest = b""
    for now, piece in pieces:
        *whole, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in whole:
            found = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if found:
                yield now, b"\n".join(found)
    if rest.strip():
        raise ValueError(f"it broke off in {rest!r:.60}")


def to_record(stream: Stream, prompt: str, sent: float, end: float) -> Record:
    """Make a record of a stream. One without a count of its tokens is an error."""
    told = len(stream.tokens) if stream.tokens is not None else None
    num = stream.output_tokens if stream.output_tokens is not None else told
    if num is None:
        return failed(prompt, sent, end, "no usage: the server does not count its tokens")
    if num < 1 or not stream.times:
        return failed(prompt, sent, end, "no tokens")
    if told is not None and told != num:
        return failed(prompt, sent, end, f"usage says {num} tokens, the chunks had {told}")
    words: Sequence[Any] = stream.text.split() if stream.tokens is None else stream.tokens
    metrics = stream.metrics or {}
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
        accepted=as_counts(metrics.get("per_step_accepted")),
        drafted=as_counts(metrics.get("per_step_drafted")),
        error=None,
    )


def as_counts(values: Any) -> tuple[int, ...] | None:
    """Return per-step counts, if there are any."""
    return None if values is None else tuple(int(one) for one in values)
