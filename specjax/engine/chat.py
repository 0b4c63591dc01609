"""Render a chat with the checkpoint's template, which is code from strangers."""

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")


def load_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Collect templates by name: chat_template.jinja wins over tokenizer_config.json."""
    found: dict[str, str] = {}
    listed = config.get("chat_template")
    if isinstance(listed, str):
        found["default"] = listed
    elif isinstance(listed, list):
        found.update({entry["name"]: entry["template"] for entry in listed})
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    if (folder / "chat_template.jinja").is_file():
        found["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return found


def render_chat(
    template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> str:
    """Check messages and render them with a jinja template, which sees the variables too.

    Raises:
        ValueError: a malformed message or template, or the template itself refuses.
    """
    if isinstance(messages, str | Mapping) or not messages:
        raise ValueError(f"messages must be a non-empty list of messages, got {messages!r}.")
    checked = [_message(message) for message in messages]
    try:
        return _compile_template(template).render({**variables, "messages": checked})
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"the chat template is not valid jinja: {error}") from error
    except (jinja2.TemplateError, TypeError) as error:
        raise ValueError(f"the chat template refused the messages: {error}") from error


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Check one chat message and flatten its content to a string."""
    if not isinstance(message, Mapping):
        raise ValueError(f"a message must be a mapping with role and content, got {message!r}.")
    if message.get("role") not in ROLES:
        raise ValueError(f"role must be one of {ROLES}, got {message.get('role')!r}.")
    content = message.get("content")
    if content is None:
        if message["role"] == "assistant" and message.get("tool_calls"):
            return dict(message)
        raise ValueError(f"the {message['role']} message has no content: {dict(message)!r}.")
    return {**message, "content": _content(content)}


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        for part in content:
            text = isinstance(part, Mapping) and part.get("type") == "text" and part.get("text")
            if not isinstance(text, str):
                raise ValueError(
                    'content parts must be {"type": "text", "text": ...} (specjax reads text '
                    f"only), got {part!r}."
                )
        return "\n".join(part["text"] for part in content)
    raise ValueError(f"content must be a string or a list of text parts, got {content!r}.")


class _GenerationBlock(jinja2.ext.Extension):
    """Read {% generation %} ... {% endgeneration %}, which marks training text, as its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _raise_exception(message: str):
    raise jinja2.TemplateError(message)


def _to_json(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@functools.cache
def _compile_template(source: str) -> jinja2.Template:
    """Compile a chat template in a sandbox: it comes with the weights, from strangers."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)
