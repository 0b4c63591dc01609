"""OpenAI's ``POST /v1/responses``, for text and functions: its requests, as chats."""

from typing import Annotated, Any, Literal

from pydantic import Field

from specjax.server.errors import APIError
from specjax.server.fields import Body, Count, Text
from specjax.server.protocol import MOST_MESSAGES
from specjax.server.tools import MOST_TOOLS

UNSERVED: dict[str, tuple] = {  # name -> values that have no effect
    "background": (), "conversation": (), "previous_response_id": (), "prompt": (), "stop": (),
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


class FunctionCall(Body):
    """A call of a function by the model, in the input."""

    type: Literal["function_call"]
    call_id: Text
    name: Text
    arguments: Text


class FunctionCallOutput(Body):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: Text
    output: Text | Annotated[list[TextPart], Field(fail_fast=True, max_length=MOST_MESSAGES)]


class FunctionTool(Body):
    """A function that the model may call; ``parameters`` is a JSON schema."""

    type: Literal["function"]
    name: Text
    description: Text | None = None
    parameters: dict[str, Any] | None = None


class FunctionChoice(Body):
    """The function that the model must call."""

    type: Literal["function"]
    name: Text


class Reasoning(Body):
    """How much a reasoning model is to think."""

    effort: Text | None = None


class Format(Body):
    """The form of the text; the fields but ``type`` are a JSON schema's."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Text | None = None
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextConfig(Body):
    """What the text is to be."""

    format: Format = Format()


AnyItem = Annotated[Item | FunctionCall | FunctionCallOutput, Field(union_mode="left_to_right")]
Items = Annotated[list[AnyItem], Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES)]


class Responses(Body):
    """``POST /v1/responses``; nothing is stored."""

    input: Text | Items
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
    tools: Annotated[list[FunctionTool], Field(fail_fast=True, max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    include: (
        Annotated[list[Literal["message.output_text.logprobs"]], Field(fail_fast=True)] | None
    ) = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool | None = None
    structured_outputs: dict[str, Any] | None = None

    def to_chat(self) -> dict[str, Any]:
        """Return the body of the same chat.

        Raises:
            APIError: 400 for a field that is not served.
        """
        for name, value in (self.model_extra or {}).items():
            if name in UNSERVED and value and value not in UNSERVED[name]:
                raise APIError(400, f"{name} is not supported here: leave it out.", name)
        same = {"model", "temperature", "top_p", "top_k", "seed", "stream", "parallel_tool_calls"}
        same |= {"structured_outputs"}
        given = self.model_dump(include=same, exclude_none=True)
        effort = None if self.reasoning is None else self.reasoning.effort
        more: dict[str, Any] = {
            "max_completion_tokens": self.max_output_tokens,
            "reasoning_effort": effort,
        }
        if self.text is not None:
            form = self.text.format.model_dump(by_alias=True, exclude_none=True)
            schema = {name: value for name, value in form.items() if name != "type"}
            more["response_format"] = {"type": form["type"], "json_schema": schema or None}
        if self.include:
            more |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return {**given, **more, **self.chat_tools(), "messages": self.turns()}

    def turns(self) -> list[dict[str, Any]]:
        """Return the messages of the same chat; calls that follow each other are one message's."""
        found: list[dict[str, Any]] = []
        if self.instructions is not None:
            found.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*found, {"role": "user", "content": self.input}]
        for item in self.input:
            made = turn(item)
            if "tool_calls" in made and found and "tool_calls" in found[-1]:
                found[-1]["tool_calls"] += made["tool_calls"]
            else:
                found.append(made)
        return found

    def chat_tools(self) -> dict[str, Any]:
        """Return the fields of a chat about tools."""
        fields = {"name", "description", "parameters"}
        made: dict[str, Any] = {}
        if self.tools:
            functions = [tool.model_dump(include=fields) for tool in self.tools]
            made["tools"] = [{"type": "function", "function": one} for one in functions]
        if isinstance(self.tool_choice, FunctionChoice):
            name = {"name": self.tool_choice.name}
            made["tool_choice"] = {"type": "function", "function": name}
        elif self.tool_choice is not None and (self.tools or self.tool_choice == "required"):
            made["tool_choice"] = self.tool_choice
        return made


def turn(item: Item | FunctionCall | FunctionCallOutput) -> dict[str, Any]:
    """Return an item of the input as a message of a chat."""
    if isinstance(item, FunctionCall):
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if isinstance(item, FunctionCallOutput):
        content = item.output if isinstance(item.output, str) else texts(item.output)
        return {"role": "tool", "tool_call_id": item.call_id, "content": content}
    return {
        "role": item.role,
        "content": item.content if isinstance(item.content, str) else texts(item.content),
    }


def texts(parts: list[TextPart]) -> list[dict[str, Any]]:
    """Return the parts of an item's content as a chat has them."""
    return [{"type": "text", "text": part.text} for part in parts]
