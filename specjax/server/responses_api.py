"""OpenAI's ``POST /v1/responses``, for text: its requests as chats, chats' answers as responses."""

import time
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import Field

from specjax.engine.outputs import CompletionOutput
from specjax.engine.service import Failed
from specjax.server.errors import APIError
from specjax.server.fields import Body, Count, Text
from specjax.server.metrics import Meters
from specjax.server.protocol import MOST_MESSAGES
from specjax.server.responses import ResponseBuilder
from specjax.server.streams import merge_streams, named_event

UNSERVED: dict[str, tuple] = {  # name -> values that have no effect
    "background": (), "conversation": (), "include": (), "previous_response_id": (),
    "prompt": (), "stop": (), "tool_choice": ("none", "auto"), "tools": (), "top_logprobs": (),
    "truncation": ("disabled",),
}  # fmt: skip


class TextPart(Body):
    """A part of an item's content."""

    type: Literal["input_text", "output_text", "text"]
    text: Text


class Item(Body):
    """A message of the input."""

    type: Literal["message"] = "message"
    role: Text
    content: Text | Annotated[list[TextPart], Field(fail_fast=True, max_length=MOST_MESSAGES)]


class Reasoning(Body):
    """How much a reasoning model is to think."""

    effort: Text | None = None


class Format(Body):
    """The form of the text; ``name`` and ``schema`` are a JSON schema's."""

    type: Literal["text", "json_object", "json_schema"] = "text"


class TextConfig(Body):
    """What the text is to be."""

    format: Format = Format()


class Responses(Body):
    """``POST /v1/responses``; nothing is stored."""

    input: (
        Text | Annotated[list[Item], Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES)]
    )
    model: Text | None = None
    instructions: Text | None = None
    max_output_tokens: Annotated[Count, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    reasoning: Reasoning | None = None
    metadata: dict[Text, Text] | None = None
    text: TextConfig | None = None
    stream: bool | None = None

    def to_chat(self) -> dict[str, Any]:
        """Return the body of the same chat.

        Raises:
            APIError: 400 for a field that is not served.
        """
        for name, value in (self.model_extra or {}).items():
            if name in UNSERVED and value and value not in UNSERVED[name]:
                raise APIError(400, f"{name} is not supported here: leave it out.", name)
        turns: list[dict[str, Any]] = []
        if self.instructions is not None:
            turns.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            turns.append({"role": "user", "content": self.input})
        else:
            turns += [turn(item) for item in self.input]
        same = {"model", "temperature", "top_p", "top_k", "seed", "stream"}
        given = self.model_dump(include=same, exclude_none=True)
        effort = None if self.reasoning is None else self.reasoning.effort
        more: dict[str, Any] = {
            "max_completion_tokens": self.max_output_tokens,
            "reasoning_effort": effort,
        }
        if self.text is not None:
            form = self.text.format.model_dump()
            schema = {name: value for name, value in form.items() if name != "type"}
            more["response_format"] = {"type": form["type"], "json_schema": schema or None}
        return {**given, **more, "messages": turns}


def turn(item: Item) -> dict[str, Any]:
    """Return an item of the input as a message of a chat."""
    content = item.content
    if not isinstance(content, str):
        content = [{"type": "text", "text": part.text} for part in content]
    return {"role": item.role, "content": content}


class Envelope:
    """Builds OpenAI's response object of one chat, at its start and at its end."""

    def __init__(self, body: Responses, builder: ResponseBuilder):
        self.body, self.builder = body, builder
        self.id, self.item_id = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self.created = int(time.time())

    def make(self, output: CompletionOutput | None) -> dict[str, Any]:
        """Return the response; ``output`` is None while it is in progress."""
        cut = output is not None and output.finish_reason == "length"
        done = "incomplete" if cut else "completed"
        params = self.builder.streams[0].params
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "in_progress" if output is None else done,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": self.body.instructions,
            "max_output_tokens": self.body.max_output_tokens,
            "metadata": self.body.metadata or {},
            "model": self.builder.model,
            "output": [] if output is None else [self.item(output.text, done)],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": params.temperature,
            "text": (self.body.text or TextConfig()).model_dump(),
            "tool_choice": "auto",
            "tools": [],
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None if output is None else self.usage(len(output.token_ids)),
        }

    def finished(self) -> dict[str, Any]:
        """Return the response of a chat that has finished."""
        return self.make(self.builder.streams[0].completion())

    def item(self, text: str | None, status: str) -> dict[str, Any]:
        """Return the message that is a response's output; ``text`` is None at its start."""
        content = [] if text is None else [self.part(text)]
        named = {"id": self.item_id, "type": "message", "role": "assistant"}
        return {**named, "status": status, "content": content}

    def part(self, text: str) -> dict[str, Any]:
        """Return a message's only part."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def usage(self, num_output: int) -> dict[str, Any]:
        """Return the token counts of a response."""
        (stream,) = self.builder.streams
        num_input = len(stream.prompt_token_ids)
        return {
            "input_tokens": num_input,
            "input_tokens_details": {"cached_tokens": stream.num_cached_tokens},
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": num_input + num_output,
        }

    async def events(self, meters: Meters) -> AsyncIterator[bytes]:
        """Yield the events of a streamed response, numbered."""
        number = 0

        def event(kind: str, **fields: Any) -> bytes:
            nonlocal number
            made = named_event({"type": kind, "sequence_number": number, **fields})
            number += 1
            return made

        where = {"item_id": self.item_id, "output_index": 0, "content_index": 0}
        yield event("response.created", response=self.make(None))
        yield event("response.in_progress", response=self.make(None))
        item = self.item(None, "in_progress")
        yield event("response.output_item.added", output_index=0, item=item)
        yield event("response.content_part.added", **where, part=self.part(""))
        try:
            async for _, delta in merge_streams(self.builder, meters):
                if delta.text:
                    yield event(
                        "response.output_text.delta", **where, delta=delta.text, logprobs=[]
                    )
        except Failed as error:
            failed = {"code": "server_error", "message": str(error)}
            response = {**self.make(None), "status": "failed", "error": failed}
            yield event("response.failed", response=response)
            return
        output = self.builder.streams[0].completion()
        response = self.finished()
        yield event("response.output_text.done", **where, text=output.text, logprobs=[])
        yield event("response.content_part.done", **where, part=self.part(output.text))
        item = response["output"][0]
        yield event("response.output_item.done", output_index=0, item=item)
        yield event("response.completed", response=response)  # its status may be "incomplete"
