"""Build the JSON of responses and of streamed chunks, for completions and for chats."""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from specjax.engine.outputs import CompletionOutput
from specjax.engine.service import Delta, RequestStream, Times
from specjax.engine.text.tokenizer import Tokenizer
from specjax.server import logprobs
from specjax.server.deployment import Admitted
from specjax.server.protocol import Chat, Completion
from specjax.server.tools import Calls


@dataclass
class ResponseBuilder:
    """Builds the response to one HTTP request.

    Args:
        body: the request.
        admitted: its samples, prompt by prompt.
        depth: draft tokens per round; 0: plain decoding.
        request_id: of the client; None: one is made.
        new_calls: makes the parser of one choice's tool calls; None: none are looked for.
        seconds: how long the request may take; None: as long as it needs.
        traced: called with each sample that has finished, its number of tokens, and the
            response's id.
    """

    body: Completion | Chat
    admitted: Sequence[Admitted]
    model: str
    tokenizer: Tokenizer
    depth: int
    request_id: str | None = None
    new_calls: Callable[[], Calls] | None = None
    seconds: float | None = None
    traced: Callable[[RequestStream, int, str], None] | None = None

    def __post_init__(self):
        self.dialect = CHAT if isinstance(self.body, Chat) else COMPLETION
        self.named = envelope(self.dialect, self.request_id, self.model, [])
        self.streams = [one.stream for one in self.admitted]
        self.num_tokens = [0] * len(self.streams)  # tokens per choice
        self.offsets = [0] * len(self.streams)  # where their next token's text starts
        self.num_chunks = [0] * len(self.streams)
        self.calls = [self.new_calls() for _ in self.streams] if self.new_calls else []
        now = asyncio.get_running_loop().time()
        self.deadline = None if self.seconds is None else now + self.seconds

    def response(self) -> dict[str, Any]:
        """Return the full response; every stream has finished."""
        choices = []
        for index, stream in enumerate(self.streams):
            output = stream.completion()
            self.num_tokens[index] = len(output.token_ids)
            choices.append(self.dialect.choice(self, index, stream, output))
        more = {"usage": self.usage(), "metrics": self.metrics()}
        if isinstance(self.body, Chat):
            more |= self.about_prompt()
        return self.envelope(self.dialect.kind, choices) | more

    def chunk(self, index: int, delta: Delta) -> dict[str, Any]:
        """Return the chunk of one choice's new tokens."""
        if self.body.echo and self.body.max_tokens == 0:  # the prompt alone
            delta = delta._replace(text="", token_ids=[], logprobs=delta.logprobs and [])
        choice = self.dialect.piece(self, index, self.streams[index], delta)
        self.num_tokens[index] += len(delta.token_ids)
        choice |= self.ending(index, delta.finish_reason, delta.stop_reason)
        if self.body.return_token_ids:
            choice["token_ids"] = delta.token_ids
        chunk = self.envelope(self.dialect.chunk_kind, [choice])
        if isinstance(self.body, Chat) and not any(self.num_chunks):
            chunk |= {name: value for name, value in self.about_prompt().items() if value}
        self.num_chunks[index] += 1
        options = self.body.stream_options
        if options is not None and options.include_usage and options.continuous_usage_stats:
            num_prompt = len(self.streams[index].prompt_token_ids)
            chunk["usage"] = usage(num_prompt, self.num_tokens[index], [self.streams[index]])
        return chunk

    def last_chunk(self) -> dict[str, Any]:
        """Return the chunk without choices that holds the usage."""
        more = {"usage": self.usage(), "metrics": self.metrics()}
        return self.envelope(self.dialect.chunk_kind, []) | more

    def said(self, index: int, output: CompletionOutput) -> dict[str, Any]:
        """Return a finished choice's content, and its tool calls if they are looked for."""
        return self.calls[index].message(output.text) if self.calls else {"content": output.text}

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        """Return what new text adds to a choice's content and tool calls."""
        if not self.calls:
            return {"content": delta.text}
        return self.calls[index].delta(delta.text, last=delta.finish_reason is not None)

    def ending(
        self, index: int, finish_reason: str | None, stop_reason: int | str | None
    ) -> dict[str, int | str | None]:
        """Return why a choice ended: by its tool calls, if the model made them of its own."""
        called = self.calls and self.calls[index].number and not self.calls[index].is_named
        reason = "tool_calls" if called and finish_reason == "stop" else finish_reason
        return {"finish_reason": reason, "stop_reason": stop_reason}

    def about_prompt(self) -> dict[str, Any]:
        """Return what a chat's response says about its prompt, None where it is not wanted."""
        stream, text = self.admitted[0]
        body = self.body
        assert isinstance(body, Chat)
        return {
            "prompt_logprobs": logprobs.of_prompt(stream.prompt_logprobs()),
            "prompt_token_ids": list(stream.prompt_token_ids) if body.return_token_ids else None,
            "prompt_text": text if body.return_prompt_text else None,
        }

    def prompt_text(self, index: int) -> tuple[str, int]:
        """Return the text of a prompt as ``echo`` shows it, and the offset of its first token.

        A prompt given as text shows as it was; special tokens that the tokenizer put before it
        have no text, so the first offset is negative. Ids show with their special tokens.
        """
        stream, text = self.admitted[index]
        whole = self.tokenizer.decode(stream.prompt_token_ids, skip_special_tokens=False)
        if text is None or not whole.endswith(text):  # ids, or the prompt has been truncated
            return whole, 0
        return text, len(text) - len(whole)

    def envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return choices with the fields that every response and chunk has."""
        return {**self.named, "object": kind, "choices": choices}

    def usage(self) -> dict[str, Any]:
        """Return the token counts of all choices; a prompt counts once for its n samples."""
        firsts = [stream for stream in self.streams if stream.index == 0]
        num_prompt = sum(len(stream.prompt_token_ids) for stream in firsts)
        return usage(num_prompt, sum(self.num_tokens), firsts)

    def metrics(self) -> dict[str, Any] | None:
        """Return the times and acceptance of the only sample, under vLLM's names; else None."""
        if len(self.streams) > 1:
            return None
        (stream,) = self.streams
        speculation = stream.completion().spec_decode_metrics
        found = timing(stream.times, self.num_tokens[0])
        if speculation is not None:
            own = {**speculation.to_dict(), "num_spec_tokens": self.depth}
            found["speculative_decoding"] = own
        return found


class Dialect(NamedTuple):
    """The format of one of the two endpoints."""

    prefix: str  # of ids
    kind: str  # "object" of a response
    chunk_kind: str  # "object" of a chunk
    choice: Callable[[ResponseBuilder, int, RequestStream, CompletionOutput], dict[str, Any]]
    piece: Callable[[ResponseBuilder, int, RequestStream, Delta], dict[str, Any]]


def completion_choice(
    self: ResponseBuilder, index: int, stream: RequestStream, output: CompletionOutput
) -> dict[str, Any]:
    """Return a completion; with ``echo`` the prompt precedes it, with its log probabilities."""
    body, prompt, offset = self.body, list(stream.prompt_token_ids), 0
    assert isinstance(body, Completion)
    if body.max_tokens == 0:  # the prompt alone
        self.num_tokens[index] = 0
        output = replace(output, text="", token_ids=(), logprobs=output.logprobs and ())
    text, ids, scored = output.text, list(output.token_ids), output.logprobs
    before = stream.prompt_logprobs()
    if body.echo:
        shown, offset = self.prompt_text(index)
        text, ids = shown + text, [*prompt, *ids]
        scored = None if before is None or scored is None else [*before, *scored]
    return {
        "index": index,
        "text": text,
        "logprobs": completion_logprobs(self, ids, scored, offset),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "prompt_logprobs": None if body.prompt_logprobs is None else logprobs.of_prompt(before),
        "token_ids": list(output.token_ids) if body.return_token_ids else None,
        "prompt_token_ids": prompt if body.return_token_ids else None,
    }


def completion_piece(
    self: ResponseBuilder, index: int, stream: RequestStream, delta: Delta
) -> dict[str, Any]:
    """Return a chunk's completion; with ``echo`` the prompt precedes the first."""
    body, text, first = self.body, delta.text, not self.num_chunks[index]
    assert isinstance(body, Completion)
    prompt, ids, scored = list(stream.prompt_token_ids), delta.token_ids, delta.logprobs
    if first and body.echo:
        before = stream.prompt_logprobs()
        shown, self.offsets[index] = self.prompt_text(index)
        text, ids = shown + text, [*prompt, *ids]
        scored = None if before is None or scored is None else [*before, *scored]
    found = completion_logprobs(self, ids, scored, self.offsets[index])
    if found is not None:
        self.offsets[index] += sum(len(self.tokenizer.token_text(one)) for one in ids)
    choice = {"index": index, "text": text, "logprobs": found}
    if first and body.return_token_ids:
        choice["prompt_token_ids"] = prompt
    return choice


def completion_logprobs(
    self: ResponseBuilder, ids: Sequence[int], scored: Any, offset: int
) -> dict[str, list] | None:
    """Return a completion's log probabilities; None if they are not wanted."""
    body = self.body
    assert isinstance(body, Completion)
    if body.num_shown is None or scored is None:
        return None
    as_ids = bool(body.return_tokens_as_token_ids)
    return logprobs.of_completion(ids, scored, body.num_shown, self.tokenizer, offset, as_ids)


def chat_role(self: ResponseBuilder) -> str:
    """Return the role of a chat's answer: the last message's if the answer continues it."""
    body = self.body
    assert isinstance(body, Chat)
    return "assistant" if body.add_generation_prompt else body.messages[-1].role


def chat_echo(self: ResponseBuilder) -> str:
    """Return the text that ``echo`` puts before the answer: the last message if it goes on."""
    body = self.body
    assert isinstance(body, Chat)
    last = body.messages[-1]
    if not body.echo or last.role != chat_role(self):
        return ""
    content = last.content or ""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def chat_choice(
    self: ResponseBuilder, index: int, stream: RequestStream, output: CompletionOutput
) -> dict[str, Any]:
    """Return a chat's message."""
    said = self.said(index, output)
    if said["content"] is not None:
        said["content"] = chat_echo(self) + said["content"]
    return {
        "index": index,
        "message": {"role": chat_role(self), **said},
        "logprobs": chat_logprobs(self, output.token_ids, output.logprobs),
        **self.ending(index, output.finish_reason, output.stop_reason),
        "token_ids": list(output.token_ids) if self.body.return_token_ids else None,
    }


def chat_piece(
    self: ResponseBuilder, index: int, stream: RequestStream, delta: Delta
) -> dict[str, Any]:
    """Return a chunk's part of a message; the first has the role."""
    first = not self.num_chunks[index]
    role, before = ({"role": chat_role(self)}, chat_echo(self)) if first else ({}, "")
    said = self.piece(index, delta)
    if before:
        said["content"] = before + said.get("content", "")
    scored = chat_logprobs(self, delta.token_ids, delta.logprobs)
    return {"index": index, "delta": {**role, **said}, "logprobs": scored}


def chat_logprobs(self: ResponseBuilder, token_ids: Sequence[int], scored: Any) -> dict | None:
    """Return a chat's log probabilities; None if they are not wanted."""
    body = self.body
    assert isinstance(body, Chat)
    if body.num_shown is None or scored is None:
        return None
    as_ids = bool(body.return_tokens_as_token_ids)
    return logprobs.of_chat(token_ids, scored, body.num_shown, as_ids)


COMPLETION = Dialect(
    "cmpl", "text_completion", "text_completion", completion_choice, completion_piece
)
CHAT = Dialect("chatcmpl", "chat.completion", "chat.completion.chunk", chat_choice, chat_piece)


def envelope(
    dialect: Dialect, request_id: str | None, model: str, choices: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return choices with the fields that every response has."""
    name = f"{dialect.prefix}-{request_id or uuid.uuid4().hex}"
    made = {"id": name, "object": dialect.kind, "created": int(time.time()), "model": model}
    return {**made, "choices": choices}


def usage(
    num_prompt: int, num_output: int, prompts: Sequence[RequestStream] = ()
) -> dict[str, Any]:
    """Return OpenAI's usage object; ``prompts`` say what was read before, and what is kept."""
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {
            "cached_tokens": sum(one.num_cached_tokens for one in prompts),
            "created_cache_tokens": sum(one.num_stored_tokens for one in prompts),
        },
    }


def timing(times: Times, num_tokens: int) -> dict[str, Any]:
    """Return the times of a finished sample in milliseconds, under vLLM's names.

    The time to the first token counts from the start of prefill, after the queue. Empty for a
    sample that was aborted before its first token.
    """
    started, first, finished = times.started, times.first_token, times.finished
    if started is None or first is None or finished is None:
        return {}
    generation = finished - first
    return {
        "time_to_first_token_ms": (first - started) * 1000,
        "generation_time_ms": generation * 1000,
        "queue_time_ms": (started - times.arrived) * 1000,
        "mean_itl_ms": generation / (num_tokens - 1) * 1000 if num_tokens > 1 else None,
        "tokens_per_second": num_tokens / max(finished - started, 1e-9),
    }
