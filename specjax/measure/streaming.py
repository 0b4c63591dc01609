"""Stream one completion from an OpenAI-compatible server and record the time of every chunk.

aiohttp, not httpx: 32 streams of a batched server get their chunks at the same moment, and one
chunk took httpx 0.5 ms of this process's time, aiohttp 0.06 ms.

While the stream runs only bytes and times are kept; they are parsed after it has ended, so that
measuring 32 streams at once delays none of them.
"""

import json
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiohttp
from yarl import URL

DONE = b"[DONE]"


class Stream(NamedTuple):
    """The content of a finished stream. Times in seconds after ``sent``."""

    text: str
    sent: float  # the ``time.perf_counter()`` at which the request was sent
    times: Sequence[float]  # of the chunks with tokens
    end: float  # of the stream
    counts: Sequence[int]  # tokens per time; [] unless every chunk has token ids
    tokens: Sequence[int] | None
    input_tokens: int | None
    output_tokens: int | None
    finish_reason: str | None
    metrics: Mapping[str, Any]  # what the server reports of the request


class StreamFailed(Exception):
    """A malformed, late, refused or interrupted stream.

    ``sent`` is the ``time.perf_counter()`` at which the request was sent, ``end`` the seconds from
    then to the failure.
    """

    def __init__(self, message: str, sent: float):
        super().__init__(message)
        self.sent, self.end = sent, time.perf_counter() - sent


def open_session(
    url: str,
    *,
    connections: int,
    api_key: str | None = None,
    timeout: float | None = None,
    keep_alive: bool = True,
) -> aiohttp.ClientSession:
    """Return a session for many streams at once; local servers are reached without a proxy.

    Args:
        url: the server's base URL, with or without /v1.
        connections: the most streams at a time.
        api_key: sent as a bearer token.
        timeout: seconds for a whole stream.
        keep_alive: whether requests share connections.
    """
    trace = aiohttp.TraceConfig()
    trace.on_request_chunk_sent.append(note_sent)
    return aiohttp.ClientSession(
        base_url=url.rstrip("/").removesuffix("/v1"),
        headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
        timeout=aiohttp.ClientTimeout(total=timeout),
        trace_configs=[trace],
        connector=aiohttp.TCPConnector(limit=connections + 1, force_close=not keep_alive),
        trust_env=URL(url).host not in ("localhost", "127.0.0.1", "::1"),
    )


async def note_sent(session, context: Any, params: Any) -> None:
    """Restart a request's clock when it is sent: waiting for a connection is not server time."""
    context.trace_request_ctx.at = time.perf_counter()


async def stream_completion(
    session: aiohttp.ClientSession, path: str, body: Mapping[str, Any]
) -> Stream:
    """Return the stream of one request. Raises StreamFailed for anything else."""
    # Encoded before the clock starts: our JSON encoding is not server time.
    content = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
    headers = {"Content-Type": "application/json"}
    pieces: list[tuple[float, bytes]] = []
    sent = SimpleNamespace(at=time.perf_counter())  # when the last byte left, once it has
    try:
        request = session.post(path, data=content, headers=headers, trace_request_ctx=sent)
        async with request as answer:
            if answer.status != 200:
                text = " ".join((await answer.text(errors="replace")).split())
                raise StreamFailed(f"HTTP {answer.status}: {text:.200}", sent.at)
            async for piece in answer.content.iter_any():
                pieces.append((time.perf_counter() - sent.at, piece))
    except TimeoutError:
        raise StreamFailed("timeout", sent.at) from None
    except aiohttp.ClientConnectorError:
        raise StreamFailed("unreachable", sent.at) from None
    except aiohttp.ClientError as error:
        raise StreamFailed(f"connection lost: {type(error).__name__}", sent.at) from None
    end = time.perf_counter() - sent.at
    try:
        return put_together(pieces, sent.at, end)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise StreamFailed(f"malformed stream: {error}", sent.at) from None


def put_together(pieces: Sequence[tuple[float, bytes]], sent: float, end: float) -> Stream:
    """Return the content of a stream's events; an event's time is that of its last byte.

    Raises ValueError or KeyError for what is no stream of completions, or has no end.
    """
    text, times, counts, ids = [], [], [], []
    usage, reason, metrics, has_ids, ended = None, None, None, True, False
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
            new = choice.get("text") if "text" in choice else chat_text(choice["delta"])
            tokens = choice.get("token_ids")
            if not new and not tokens:
                continue
            text.append(new or "")
            if times and now == times[-1]:
                counts[-1] += len(tokens or ())
            else:
                times.append(now)
                counts.append(len(tokens or ()))
            has_ids &= tokens is not None
            ids += tokens or []
    if not ended and reason is None:
        raise ValueError("it ended before its last event")
    return Stream(
        text="".join(text),
        sent=sent,
        times=times,
        end=end,
        counts=counts if has_ids else [],
        tokens=ids if has_ids else None,
        input_tokens=(usage or {}).get("prompt_tokens"),
        output_tokens=(usage or {}).get("completion_tokens"),
        finish_reason=reason,
        metrics=dict(metrics or {}),
    )


def chat_text(delta: Mapping[str, Any]) -> str:
    """Return the text of a chat chunk, its reasoning included."""
    return (delta.get("reasoning_content") or delta.get("reasoning") or "") + (
        delta.get("content") or ""
    )


def events(pieces: Sequence[tuple[float, bytes]]):
    """Yield (time of its last byte, data) of every server-sent event."""
    rest = b""
    for now, piece in pieces:
        *whole, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in whole:
            found = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if found:
                yield now, b"\n".join(found)
    if rest.strip():
        raise ValueError(f"it broke off in {rest!r:.60}")
