"""Tools that a chat offers its model: the request's fields, the grammar of forced calls, answers.

``tool_choice`` is OpenAI's: "none", "auto" (the model decides; its text is parsed in the format it
was trained on), "required" (by a grammar the text is a list of calls) or one function's name (the
text is its arguments).
"""

import json
import secrets
import string
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal

from specjax.engine.options.structured_outputs import StructuredOutputsParams
from specjax.server.fields import Body, Text
from specjax.server.tool_parsers import Begin, Content, Event, NamedCall, Parser

MOST_TOOLS = 128  # per request, as in OpenAI
LOCAL = ("$defs", "definitions")  # where a schema's references point to, from its root


class Function(Body):
    """A function that the model may call; ``parameters`` is a JSON schema."""

    name: Text
    description: Text | None = None
    parameters: dict[str, Any] | None = None


class Tool(Body):
    """A tool that the model may use."""

    type: Literal["function"] = "function"
    function: Function


class FunctionName(Body):
    """The name of a function."""

    name: Text


class NamedChoice(Body):
    """The function that the model must call."""

    type: Literal["function"] = "function"
    function: FunctionName


def call_form(
    tools: Sequence[Tool], choice: str | NamedChoice, *, several: bool
) -> StructuredOutputsParams:
    """Return the form of a text that is one function's arguments, or a list of calls.

    There is no white space between JSON's signs: a model may write it without end.

    Args:
        choice: "required", or the function.
        several: whether the list may have more than one call.

    Raises:
        ValueError: two schemas define different things under one name.
    """
    if isinstance(choice, NamedChoice):
        (function,) = (t.function for t in tools if t.function.name == choice.function.name)
        return StructuredOutputsParams(json=parameters(function), disable_any_whitespace=True)
    whole: dict[str, Any] = {}
    calls = []
    for function in (tool.function for tool in tools):
        schema = dict(parameters(function))
        for where in LOCAL:
            whole[where] = joined(whole.get(where, {}), schema.pop(where, {}))
        properties = {"name": {"const": function.name}, "parameters": schema}
        call = {"type": "object", "properties": properties, "required": list(properties)}
        calls.append({**call, "additionalProperties": False})
    whole |= {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if not several:
        whole["maxItems"] = 1
    return StructuredOutputsParams(json=whole, disable_any_whitespace=True)


def joined(some: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return the definitions of two schemas. Raises ValueError if one name means two things."""
    for name in some.keys() & more.keys():
        if some[name] != more[name]:
            raise ValueError(f"two tools define {name!r} differently.")
    return {**some, **more}


def parameters(function: Function) -> dict[str, Any]:
    """Return the JSON schema of a function's arguments."""
    return function.parameters or {"type": "object", "properties": {}}


def with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose tool calls have their arguments as objects, as templates take them.

    Raises:
        ValueError: arguments are no JSON.
    """
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" or not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [with_object(call) for call in calls]}


def with_object(call: Any) -> Any:
    """Return a tool call with its arguments as an object. Raises ValueError if they are no JSON."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        given = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the arguments of a tool call are no JSON: {error}") from None
    return {**call, "function": {**function, "arguments": given}}


def usual_id() -> str:
    """Return the id of a call, as vLLM names them."""
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


def mistral_id() -> str:
    """Return the id of a call in the only form that Mistral's templates accept."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


class Calls:
    """The content and the tool calls of one choice, as its text comes.

    Args:
        parser: of the text.
        most: how many calls are answered with; the model's others are dropped.
        new_id: names a call.
    """

    def __init__(self, parser: Parser, most: int | None, new_id: Callable[[], str]):
        self._parser, self._most, self._new_id = parser, most, new_id
        self.number = 0  # of calls

    @property
    def is_named(self) -> bool:
        """Return whether the request named the function: then the answer ends with "stop"."""
        return isinstance(self._parser, NamedCall)

    def delta(self, text: str, *, last: bool) -> dict[str, Any]:
        """Return the part of a message that a piece of text adds: its content, its tool calls."""
        events = self._parser.push(text) + (self._parser.flush() if last else [])
        content = "".join(event.text for event in events if isinstance(event, Content))
        calls = self._pieces(events)
        return {
            **({"content": content} if content else {}),
            **({"tool_calls": calls} if calls else {}),
        }

    def _pieces(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        for event in events:
            if isinstance(event, Content):
                continue
            self.number += isinstance(event, Begin)
            if self._most is not None and self.number > self._most:
                continue
            if isinstance(event, Begin):
                named = {"id": self._new_id(), "type": "function"}
                function = {"name": event.name, "arguments": ""}
                made.append({"index": self.number - 1, **named, "function": function})
            elif made and made[-1]["index"] == self.number - 1:
                made[-1]["function"]["arguments"] += event.text
            else:
                made.append({"index": self.number - 1, "function": {"arguments": event.text}})
        return made

    def message(self, text: str) -> dict[str, Any]:
        """Return the content and the tool calls of a whole text."""
        whole = self.delta(text, last=True)
        calls = [
            {name: value for name, value in call.items() if name != "index"}
            for call in whole.get("tool_calls", ())
        ]
        return {"content": whole.get("content", None if calls else ""), "tool_calls": calls}
