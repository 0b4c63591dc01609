"""Tool calls in a model's text, found as it streams, in the formats that models are trained on.

A format is data: what begins the calls, and what stands before a call's arguments. The arguments
are a JSON object, whose end is where its braces close, so every character is looked at once. Names
are vLLM's ``--tool-call-parser``. What turns out not to be a call stays text.
"""

import json
import re
from typing import NamedTuple

MOST_HEADER = 512  # characters before a call's arguments that are searched for its name
IN_OBJECT = re.compile(r'"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*\{$')


class Content(NamedTuple):
    """A piece of text that is no call."""

    text: str


class Begin(NamedTuple):
    """The beginning of a call of a function."""

    name: str


class Arguments(NamedTuple):
    """A piece of the last call's arguments: JSON."""

    text: str


Event = Content | Begin | Arguments


class Format(NamedTuple):
    """How a model writes tool calls."""

    start: str  # what begins them, at any place of the text; "": nothing does
    headers: dict[int, re.Pattern[str]]  # open braces -> what ends with the arguments' first
    bare: str = ""  # characters that begin calls where the text begins


FORMATS = {  # by vLLM's names
    "hermes": Format("<tool_call>", {2: IN_OBJECT}),
    "llama3_json": Format("<|python_tag|>", {2: IN_OBJECT}, bare="{"),
    "mistral": Format(  # a list of objects, later NAME{...} for each call
        "[TOOL_CALLS]",
        {1: re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*\{$"), 2: IN_OBJECT},
    ),
    "deepseek_v3": Format(
        "<｜tool▁calls▁begin｜>", {1: re.compile(r"<｜tool▁sep｜>([^\n<]+)\n```json\n\{$")}
    ),
    "deepseek_v31": Format(
        "<｜tool▁calls▁begin｜>",
        {1: re.compile(r"<｜tool▁call▁begin｜>([^<]+)<｜tool▁sep｜>\s*\{$")},
    ),
}
FORMATS["llama4_json"] = FORMATS["llama3_json"]
REQUIRED = Format("", {2: IN_OBJECT}, bare="[{")  # a JSON list of calls, by a grammar


class NamedCall:
    """The parser of a text that is, by a grammar, the arguments of one function."""

    def __init__(self, name: str):
        self._begin: list[Event] = [Begin(name)]

    def push(self, text: str) -> list[Event]:
        """Return the events of the next piece of text."""
        begin, self._begin = self._begin if text else [], [] if text else self._begin
        return [*begin, Arguments(text)] if text else []

    def flush(self) -> list[Event]:
        """Return nothing: no text is held back."""
        return []


class ToolParser:
    """The parser of one format."""

    def __init__(self, form: Format):
        self._form = form
        self._held = ""  # content that may be the beginning of ``start``
        self._is_first = True  # nothing but white space has come
        self._calling = False  # ``start`` has come
        self._num_calls = 0
        self._begin_call("")

    def _begin_call(self, header: str) -> None:
        self._header = [header]  # characters before the arguments
        self._depth = 0  # open braces
        self._in_string = self._escaped = False
        self._outside: int | None = None  # open braces around the arguments; None: not begun
        self._is_known = False  # the arguments have begun

    def push(self, text: str) -> list[Event]:
        """Return the events of the next piece of text."""
        events: list[Event] = []
        while text:
            text = (self._scan if self._calling else self._find)(text, events)
        return events

    def flush(self) -> list[Event]:
        """Return what has been held back and is no call; after a call, what was cut is dropped."""
        left = self._held
        if self._calling and not self._is_known and not self._num_calls and self._form.start:
            left = "".join(self._header)
        self._held = ""
        return [Content(left)] if left else []

    def _find(self, text: str, events: list[Event]) -> str:
        """Take content up to where calls begin; return the text after it."""
        text, self._held = self._held + text, ""
        start, bare = self._form.start, self._form.bare
        if self._is_first and bare:
            if not text.strip():
                self._held = text
                return ""
            if text.lstrip()[0] in bare:
                self._calling = True
                return text
        self._is_first = False
        at = text.find(start) if start else -1
        if at >= 0:
            self._calling = True
            self._begin_call(start)
            rest = text[at + len(start) :]
        else:
            at, rest = len(text) - overlap(text, start), ""
            self._held = text[at:]
        if text[:at]:
            events.append(Content(text[:at]))
        return rest

    def _scan(self, text: str, events: list[Event]) -> str:
        """Take text up to the end of a call; return what follows it."""
        first = 0  # of the arguments, in ``text``
        for i, char in enumerate(text):
            if not self._is_known:
                self._header.append(char)
            self._count(char)
            if self._in_string or char not in "{}":
                continue
            if char == "{" and not self._is_known:
                name = self._name()
                if name is not None:
                    events.append(Begin(name))
                    self._is_known, self._outside, first = True, self._depth - 1, i
            elif char == "}" and self._depth == self._outside:
                events.append(Arguments(text[first : i + 1]))
                self._outside, first = None, i + 1
            if char == "}" and not self._depth:
                if not self._is_known:
                    self._whole(events)
                self._num_calls += self._calling
                self._begin_call("")
                return text[i + 1 :]
        if self._outside is not None and text[first:]:
            events.append(Arguments(text[first:]))
        return ""

    def _count(self, char: str) -> None:
        """Follow the braces of JSON, which do not count in strings."""
        if self._in_string:
            self._in_string = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._in_string = self._depth > 0
        elif char == "{":
            self._depth += 1
        elif char == "}" and self._depth:
            self._depth -= 1

    def _name(self) -> str | None:
        """Return the name of the function whose arguments begin here; None if none do."""
        header = self._form.headers.get(self._depth)
        found = header and header.search("".join(self._header[-MOST_HEADER:]))
        return found.group(1).strip() if found else None

    def _whole(self, events: list[Event]) -> None:
        """Take an object whose arguments did not follow its name; what is no call is content."""
        text = "".join(self._header)
        try:
            call = json.loads(text[text.index("{") :])
        except (ValueError, RecursionError):
            call = {}
        name = call.get("name")
        if 2 in self._form.headers and isinstance(name, str) and name:
            given = call.get("arguments", call.get("parameters", {}))
            given = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            events += [Begin(name), Arguments(given)]
        else:
            events.append(Content(text))
            self._calling = False


Parser = NamedCall | ToolParser  # turns the text of one answer into events


def overlap(text: str, start: str) -> int:
    """Return the length of the longest end of a text that may be the beginning of ``start``."""
    longest = range(min(len(text), len(start) - 1), 0, -1)
    return next((n for n in longest if text.endswith(start[:n])), 0)
