"""Answers of ``POST /v1/responses``: a chat's answer as OpenAI's response, whole or as events."""

import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from specjax.engine.outputs import CompletionOutput
from specjax.engine.service import Delta, Failed
from specjax.server.metrics import Meters
from specjax.server.responses import ResponseBuilder, chat_logprobs
from specjax.server.responses_api import Responses, TextConfig
from specjax.server.streams import merge_streams, named_event, status_of


class Envelope:
    """Builds OpenAI's response object of one chat, at its start and at its end."""

    def __init__(self, body: Responses, builder: ResponseBuilder):
        self.body, self.builder = body, builder
        self.id, self.created = new_id("resp"), int(time.time())

    def make(self, output: CompletionOutput | None, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the response; ``output`` is None while it is in progress."""
        cut = output is not None and output.finish_reason == "length"
        done = "incomplete" if cut else "completed"
        params, body = self.builder.streams[0].params, self.body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "in_progress" if output is None else done,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self.builder.model,
            "output": items,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": params.temperature,
            "text": (body.text or TextConfig()).model_dump(by_alias=True, exclude_none=True),
            "tool_choice": "auto" if body.tool_choice is None else dumped(body.tool_choice),
            "tools": [dumped(tool) for tool in body.tools or ()],
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None if output is None else self.usage(len(output.token_ids)),
        }

    def finished(self) -> dict[str, Any]:
        """Return the response of a chat that has finished; calls that were cut are left out."""
        output = self.builder.streams[0].completion()
        status = "incomplete" if output.finish_reason == "length" else "completed"
        said = self.builder.said(0, output)
        calls = [
            function_call(new_id("fc"), call["id"], call["function"], "completed")
            for call in said.get("tool_calls", ())
            if status == "completed" or is_json(call["function"]["arguments"])
        ]
        items = []
        if said["content"] or not calls:
            scored = self.scored(output.token_ids, output.logprobs)
            part = text_part(said["content"] or "", scored)
            items.append(message(new_id("msg"), status, [part]))
        return self.make(output, [*items, *calls])

    def scored(self, token_ids: Any, logprobs: Any) -> list[dict[str, Any]]:
        """Return the log probabilities of a text, if the request includes them."""
        found = chat_logprobs(self.builder, token_ids, logprobs)
        return [] if found is None else found["content"]

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
        numbered, items = Numbered(), Items(self)
        yield numbered.event("response.created", response=self.make(None, []))
        yield numbered.event("response.in_progress", response=self.make(None, []))
        try:
            async for _, delta in merge_streams(self.builder, meters):
                for kind, fields in items.add(delta):
                    yield numbered.event(kind, **fields)
        except Failed as error:
            codes = {400: "invalid_prompt", 504: "timeout"}
            code = codes.get(status_of(error), "server_error")
            failed = {"status": "failed", "error": {"code": code, "message": str(error)}}
            response = {**self.make(None, items.done), **failed}
            yield numbered.event("response.failed", response=response)
            return
        output = self.builder.streams[0].completion()
        for kind, fields in items.finish(output.finish_reason == "length"):
            yield numbered.event(kind, **fields)
        response = self.make(output, items.done)  # its status may be "incomplete"
        yield numbered.event("response.completed", response=response)


class Numbered:
    """The events of one stream, with their sequence numbers."""

    def __init__(self):
        self._number = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        """Return the next event."""
        made = named_event({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return made


Event = tuple[str, dict[str, Any]]


class Items:
    """The items of a streamed response, of which at most one is open."""

    def __init__(self, envelope: Envelope):
        self._envelope = envelope
        self.done: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None  # the open one
        self._text = ""  # its text, or its arguments
        self._logprobs: list[dict[str, Any]] = []

    def add(self, delta: Delta) -> list[Event]:
        """Return the events of a chat's new tokens: of its text, of its calls."""
        said, made = self._envelope.builder.piece(0, delta), list[Event]()
        scored = self._envelope.scored(delta.token_ids, delta.logprobs)
        text = said.get("content", "")
        if text or (scored and not self._envelope.builder.calls):
            if self._item is None or self._item["type"] != "message":
                made += self._begin(message(new_id("msg"), "in_progress", []))
            self._text += text
            self._logprobs += scored
            fields = {"delta": text, "logprobs": scored}
            made.append(("response.output_text.delta", {**self._where(), **fields}))
        for call in said.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                empty = {"name": function["name"], "arguments": ""}
                made += self._begin(function_call(new_id("fc"), call["id"], empty, "in_progress"))
            if function["arguments"]:
                self._text += function["arguments"]
                fields = {**self._where(), "delta": function["arguments"]}
                made.append(("response.function_call_arguments.delta", fields))
        return made

    def finish(self, cut: bool) -> list[Event]:
        """Return the last events; a response without any item has an empty text.

        Args:
            cut: the text was cut where it may not be complete.
        """
        empty = self._item is None and not self.done
        begun = self._begin(message(new_id("msg"), "in_progress", [])) if empty else []
        return [*begun, *self._end("incomplete" if cut else "completed")]

    def _where(self) -> dict[str, Any]:
        """Return the fields that name the open item, or its part."""
        assert self._item is not None
        found = {"item_id": self._item["id"], "output_index": len(self.done)}
        return {**found, "content_index": 0} if self._item["type"] == "message" else found

    def _begin(self, item: dict[str, Any]) -> list[Event]:
        made = self._end("completed")
        self._item, self._text, self._logprobs = item, "", []
        index = {"output_index": len(self.done)}
        made.append(("response.output_item.added", {**index, "item": item}))
        if item["type"] == "message":
            fields = {**self._where(), "part": text_part("", [])}
            made.append(("response.content_part.added", fields))
        return made

    def _end(self, status: str) -> list[Event]:
        """Return the events that close the open item."""
        item, where = self._item, {} if self._item is None else self._where()
        if item is None:
            return []
        made: list[Event] = []
        if item["type"] == "message":
            part = text_part(self._text, self._logprobs)
            text = {"text": self._text, "logprobs": self._logprobs}
            made.append(("response.output_text.done", {**where, **text}))
            made.append(("response.content_part.done", {**where, "part": part}))
            item = {**item, "status": status, "content": [part]}
        else:
            item = {**item, "status": status, "arguments": self._text}
            named = {"name": item["name"], "arguments": self._text}
            made.append(("response.function_call_arguments.done", {**where, **named}))
        made.append(
            ("response.output_item.done", {"output_index": where["output_index"], "item": item})
        )
        self.done.append(item)
        self._item = None
        return made


def message(name: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the item of a text."""
    named = {"id": name, "type": "message", "role": "assistant"}
    return {**named, "status": status, "content": content}


def text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a message's only part."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def function_call(name: str, call_id: str, function: dict[str, Any], status: str) -> dict[str, Any]:
    """Return the item of a call."""
    called = {"name": function["name"], "arguments": function["arguments"]}
    return {"id": name, "type": "function_call", "call_id": call_id, **called, "status": status}


def is_json(text: str) -> bool:
    """Return whether a call's arguments are complete."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def dumped(value: Any) -> Any:
    """Return a field of the request as JSON has it."""
    return value if isinstance(value, str) else value.model_dump(exclude_none=True)


def new_id(prefix: str) -> str:
    """Return a new id of a response or an item."""
    return f"{prefix}_{uuid.uuid4().hex}"
