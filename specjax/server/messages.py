"""Anthropic's ``POST /v1/messages``: its requests as chats, chats' answers as its messages."""

import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import Field

from specjax.engine.service import Failed
from specjax.server.errors import APIError, anthropic_error
from specjax.server.metrics import Meters
from specjax.server.protocol import MOST_MESSAGES, MOST_STOPS, Body, Count, Part, Text, Word
from specjax.server.responses import ResponseBuilder
from specjax.server.streams import merge_streams, named_event

Blocks = Text | Annotated[list[Part], Field(fail_fast=True, max_length=MOST_MESSAGES)]
UNSERVED = ("tools", "tool_choice", "thinking", "mcp_servers", "container", "output_config")


class Turn(Body):
    """One turn of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class CountTokens(Body):
    """``POST /v1/messages/count_tokens``."""

    model: Text
    messages: Annotated[list[Turn], Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES)]
    system: Blocks | None = None

    def to_chat(self) -> dict[str, Any]:
        """Return the body of the same chat; a last turn of the assistant is continued.

        Raises:
            APIError: 400 for a field that is not served.
        """
        for name in UNSERVED:
            if (self.model_extra or {}).get(name):
                raise APIError(400, f"{name} is not supported here: leave it out.", name)
        turns = [turn.model_dump() for turn in self.messages]
        if self.system is not None:
            system = self.model_dump(include={"system"})["system"]
            turns.insert(0, {"role": "system", "content": system})
        goes_on = self.messages[-1].role == "assistant"
        more = {"add_generation_prompt": not goes_on, "continue_final_message": goes_on}
        return {"model": self.model, "messages": turns, **more}


class Messages(CountTokens):
    """``POST /v1/messages``."""

    max_tokens: Annotated[Count, Field(ge=1)]
    stop_sequences: Annotated[list[Word], Field(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    def to_chat(self) -> dict[str, Any]:
        """Return the body of the same chat."""
        same = {"max_tokens", "stream", "temperature", "top_k", "top_p"}
        given = self.model_dump(include=same, exclude_none=True)
        return {**super().to_chat(), **given, "stop": self.stop_sequences}


def new_id() -> str:
    """Return the id of a message."""
    return f"msg_{uuid.uuid4().hex}"


def message(builder: ResponseBuilder) -> dict[str, Any]:
    """Return Anthropic's message of a finished chat."""
    (stream,) = builder.streams
    output = stream.completion()
    content = [{"type": "text", "text": output.text}]
    return {
        **start(builder),
        "content": content,
        **ending(output.finish_reason, output.stop_reason),
        "usage": usage(builder, len(output.token_ids)),
    }


def start(builder: ResponseBuilder) -> dict[str, Any]:
    """Return a message that has no content yet."""
    return {
        "id": new_id(),
        "type": "message",
        "role": "assistant",
        "model": builder.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage(builder, 0),
    }


def usage(builder: ResponseBuilder, num_output: int) -> dict[str, int]:
    """Return Anthropic's token counts."""
    return {
        "input_tokens": len(builder.streams[0].prompt_token_ids),
        "output_tokens": num_output,
    }


def ending(finish_reason: str | None, stop_reason: int | str | None) -> dict[str, str | None]:
    """Return why a message ended, in Anthropic's words."""
    if isinstance(stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
    reason = "max_tokens" if finish_reason == "length" else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


async def events(builder: ResponseBuilder, meters: Meters) -> AsyncIterator[bytes]:
    """Yield the events of a message: its start, its text piece by piece, its end."""
    num_output = 0
    yield named_event({"type": "message_start", "message": start(builder)})
    block = {"type": "text", "text": ""}
    yield named_event({"type": "content_block_start", "index": 0, "content_block": block})
    try:
        async for _, delta in merge_streams(builder, meters):
            num_output += len(delta.token_ids)
            if delta.text:
                piece = {"type": "text_delta", "text": delta.text}
                yield named_event({"type": "content_block_delta", "index": 0, "delta": piece})
            if delta.finish_reason is None:
                continue
            yield named_event({"type": "content_block_stop", "index": 0})
            why = ending(delta.finish_reason, delta.stop_reason)
            counted = usage(builder, num_output)
            yield named_event({"type": "message_delta", "delta": why, "usage": counted})
            yield named_event({"type": "message_stop"})
    except Failed as error:
        yield named_event(anthropic_error(500, str(error)))
