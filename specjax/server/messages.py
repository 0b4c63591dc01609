"""Anthropic's ``POST /v1/messages``: its requests as chats, chats' answers as its messages."""

import json
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import Field

from specjax.engine.service import Failed
from specjax.server.errors import APIError, anthropic_error
from specjax.server.fields import Body, Count, Text, Word
from specjax.server.metrics import Meters
from specjax.server.protocol import MOST_MESSAGES, MOST_STOPS, Part
from specjax.server.responses import ResponseBuilder
from specjax.server.streams import merge_streams, named_event, status_of
from specjax.server.tools import MOST_TOOLS

Parts = Text | Annotated[list[Part], Field(fail_fast=True, max_length=MOST_MESSAGES)]
UNSERVED = ("thinking", "mcp_servers", "container")
CHOICES = {"auto": "auto", "any": "required", "none": "none"}  # of tools: Anthropic's word -> ours


class ToolUse(Body):
    """A block in which the model called a tool."""

    type: Literal["tool_use"]
    id: Text
    name: Text
    input: dict[str, Any]


class ToolResult(Body):
    """A block with what a tool returned."""

    type: Literal["tool_result"]
    tool_use_id: Text
    content: Parts = ""


Block = Annotated[Part | ToolUse | ToolResult, Field(union_mode="smart")]


class Turn(Body):
    """One turn of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Text | Annotated[list[Block], Field(fail_fast=True, max_length=MOST_MESSAGES)]

    def messages(self) -> list[dict[str, Any]]:
        """Return the turn as OpenAI's messages: each result of a tool is one, before the text."""
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        made = [
            {"role": "tool", "tool_call_id": block.tool_use_id, "content": texts(block.content)}
            for block in self.content
            if isinstance(block, ToolResult)
        ]
        said: dict[str, Any] = {
            "content": [part.model_dump() for part in self.content if isinstance(part, Part)],
            "tool_calls": [call(block) for block in self.content if isinstance(block, ToolUse)],
        }
        said = {name: value for name, value in said.items() if value}
        return [*made, {"role": self.role, **said}] if said or not made else made


class AnthropicTool(Body):
    """A tool that the model may use."""

    name: Text
    description: Text | None = None
    input_schema: dict[str, Any]


class ToolChoice(Body):
    """Which tools the model may or must use."""

    type: Literal["auto", "any", "tool", "none"]
    name: Text | None = None
    disable_parallel_tool_use: bool = False


class OutputFormat(Body):
    """The form of the text: a JSON schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """What the answer is to be."""

    format: OutputFormat | None = None
    effort: Text | None = None


class CountTokens(Body):
    """``POST /v1/messages/count_tokens``."""

    model: Text
    messages: Annotated[list[Turn], Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES)]
    system: Parts | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None

    def to_chat(self) -> dict[str, Any]:
        """Return the body of the same chat; a last turn of the assistant is continued.

        Raises:
            APIError: 400 for a field that is not served.
        """
        for name in UNSERVED:
            if (self.model_extra or {}).get(name):
                raise APIError(400, f"{name} is not supported here: leave it out.", name)
        turns = [message for turn in self.messages for message in turn.messages()]
        if self.system is not None:
            turns.insert(0, {"role": "system", "content": texts(self.system)})
        goes_on = self.messages[-1].role == "assistant"
        more = {"add_generation_prompt": not goes_on, "continue_final_message": goes_on}
        return {"model": self.model, "messages": turns, **more, **self.chat_tools()}

    def chat_tools(self) -> dict[str, Any]:
        """Return the fields of a chat about tools."""
        if not self.tools:
            return {}
        functions = [
            {"name": one.name, "description": one.description, "parameters": one.input_schema}
            for one in self.tools
        ]
        made: dict[str, Any] = {"tools": [{"type": "function", "function": f} for f in functions]}
        choice = self.tool_choice
        if choice is not None:
            named = {"type": "function", "function": {"name": choice.name or ""}}
            made["tool_choice"] = CHOICES.get(choice.type, named)
            made["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        return made


class Messages(CountTokens):
    """``POST /v1/messages``."""

    max_tokens: Annotated[Count, Field(ge=1)]
    stop_sequences: Annotated[list[Word], Field(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    output_config: OutputConfig | None = None

    def to_chat(self) -> dict[str, Any]:
        """Return the body of the same chat."""
        same = {"max_tokens", "stream", "temperature", "top_k", "top_p"}
        given = self.model_dump(include=same, exclude_none=True)
        config = self.output_config or OutputConfig()
        if config.format is not None:
            schema = {"name": "output", "schema": config.format.schema_}
            given["response_format"] = {"type": "json_schema", "json_schema": schema}
        if config.effort is not None:
            given["reasoning_effort"] = config.effort
        return {**super().to_chat(), **given, "stop": self.stop_sequences}


def texts(content: str | list[Part]) -> Any:
    """Return a content of texts as a chat has it."""
    return content if isinstance(content, str) else [part.model_dump() for part in content]


def call(block: ToolUse) -> dict[str, Any]:
    """Return a call of a tool as a chat has it."""
    function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
    return {"id": block.id, "type": "function", "function": function}


def new_id() -> str:
    """Return the id of a message."""
    return f"msg_{uuid.uuid4().hex}"


def message(builder: ResponseBuilder) -> dict[str, Any]:
    """Return Anthropic's message of a finished chat."""
    (stream,) = builder.streams
    output = stream.completion()
    said = builder.said(0, output)
    calls = said.get("tool_calls", [])
    text = [{"type": "text", "text": said["content"]}] if said["content"] or not calls else []
    return {
        **start(builder),
        "content": [*text, *map(tool_use, calls)],
        **ending(builder, output.finish_reason, output.stop_reason),
        "usage": usage(builder, len(output.token_ids)),
    }


def tool_use(call: dict[str, Any]) -> dict[str, Any]:
    """Return a chat's finished tool call as a block; arguments that were cut are empty."""
    try:
        given = json.loads(call["function"]["arguments"])
    except ValueError:
        given = {}
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": given}


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
    """Return Anthropic's token counts: what was read before, what is kept now, and the others.

    At the start of a stream neither is known.
    """
    (stream,) = builder.streams
    num_cached = stream.num_cached_tokens if num_output else 0
    num_stored = stream.num_stored_tokens if num_output else 0
    return {
        "input_tokens": len(stream.prompt_token_ids) - num_cached - num_stored,
        "cache_creation_input_tokens": num_stored,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_output,
    }


def ending(
    builder: ResponseBuilder, finish_reason: str | None, stop_reason: int | str | None
) -> dict[str, str | None]:
    """Return why a message ended, in Anthropic's words."""
    if isinstance(stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
    called = builder.calls and builder.calls[0].number
    reason = "tool_use" if called else "end_turn"
    reason = "max_tokens" if finish_reason == "length" else reason
    return {"stop_reason": reason, "stop_sequence": None}


class BlockStream:
    """The events of a message's blocks, of which at most one is open."""

    def __init__(self):
        self._index, self._kind = -1, ""  # of the open block; "": none is open

    def begin(self, block: dict[str, Any]) -> list[bytes]:
        """Return the events that close the open block and start another."""
        ended = self.end()
        self._index, self._kind = self._index + 1, block["type"]
        begun = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*ended, named_event(begun)]

    def end(self) -> list[bytes]:
        """Return the event that closes the open block."""
        if not self._kind:
            return []
        self._kind = ""
        return [named_event({"type": "content_block_stop", "index": self._index})]

    def add(self, said: dict[str, Any]) -> list[bytes]:
        """Return the events of a piece of a chat's message: its content, its tool calls."""
        made: list[bytes] = []
        if said.get("content"):
            if self._kind != "text":
                made += self.begin({"type": "text", "text": ""})
            made.append(self._delta({"type": "text_delta", "text": said["content"]}))
        for call in said.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                named = {"id": call["id"], "name": function["name"]}
                made += self.begin({"type": "tool_use", **named, "input": {}})
            if function["arguments"]:
                piece = {"type": "input_json_delta", "partial_json": function["arguments"]}
                made.append(self._delta(piece))
        return made

    def finish(self) -> list[bytes]:
        """Return the last events; a message without any content has an empty text."""
        empty = self.begin({"type": "text", "text": ""}) if self._index < 0 else []
        return [*empty, *self.end()]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return named_event({"type": "content_block_delta", "index": self._index, "delta": delta})


async def events(builder: ResponseBuilder, meters: Meters) -> AsyncIterator[bytes]:
    """Yield the events of a message: its start, its blocks piece by piece, its end."""
    num_output, blocks = 0, BlockStream()
    yield named_event({"type": "message_start", "message": start(builder)})
    try:
        async for _, delta in merge_streams(builder, meters):
            num_output += len(delta.token_ids)
            for made in blocks.add(builder.piece(0, delta)):
                yield made
            if delta.finish_reason is None:
                continue
            for made in blocks.finish():
                yield made
            why = ending(builder, delta.finish_reason, delta.stop_reason)
            counted = usage(builder, num_output)
            yield named_event({"type": "message_delta", "delta": why, "usage": counted})
            yield named_event({"type": "message_stop"})
    except Failed as error:
        yield named_event(anthropic_error(status_of(error), str(error)))
