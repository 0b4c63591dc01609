"""Render a chat with the checkpoint's template, in a sandbox: the template is untrusted code."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from specjax.engine.text.sandbox import render_template


def load_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return a folder's templates by name; chat_template.jinja wins over tokenizer_config.json."""
    found: dict[str, str] = {}
    listed = config.get("chat_template")
    if isinstance(listed, str):
        found["default"] = listed
    elif isinstance(listed, list):
        found.update(_named_template(entry, folder) for entry in listed)
    elif listed is not None:
        raise ValueError(f"chat_template in {folder} must be a text, got {type(listed).__name__}.")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = read_template(path)
    if (folder / "chat_template.jinja").is_file():
        found["default"] = read_template(folder / "chat_template.jinja")
    return found


def read_template(path: Path) -> str:
    """Return the text of a file. Raises ValueError, with its name, if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None


def _named_template(entry: Any, folder: Path) -> tuple[str, str]:
    given = entry if isinstance(entry, Mapping) else {}
    name, template = given.get("name"), given.get("template")
    if not isinstance(name, str) or not isinstance(template, str):
        raise ValueError(
            f"chat_template in {folder} must be a text, or a list of objects with the texts name "
            f"and template; one entry has {sorted(map(str, given)) or type(entry).__name__}."
        )
    return name, template


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    continue_final_message: bool = False,
) -> str:
    """Return the text of messages, rendered with a jinja template that may use the variables.

    Args:
        continue_final_message: end the text with the last message's content, as transformers does.

    Raises:
        ValueError: a malformed message or template, or the template raises an exception.
    """
    if isinstance(messages, str | Mapping) or not messages:
        raise ValueError(f"messages must be a non-empty list of messages, got {messages!r}.")
    checked = [_message(message) for message in messages]
    try:
        text = render_template(template, {**variables, "messages": checked})
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"the chat template is not valid jinja: {error}") from error
    except (jinja2.TemplateError, TypeError) as error:
        raise ValueError(f"the chat template refused the messages: {error}") from error
    return _cut_after(text, checked[-1].get("content") or "") if continue_final_message else text


def _cut_after(text: str, content: str) -> str:
    """Return a rendered chat up to the end of its last message's content."""
    start = text.rfind(content.strip())
    if start < 0 or not content.strip():
        raise ValueError(
            "continue_final_message is set, but the last message is not in the rendered chat: it "
            "has no text, or the chat template changes it."
        )
    whole = text.startswith(content, start)
    return text[: start + len(content if whole else content.strip())]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked chat message with its content as one string."""
    if not isinstance(message, Mapping):
        raise ValueError(f"a message must be a mapping with role and content, got {message!r}.")
    if not isinstance(message.get("role"), str):
        raise ValueError(f"role must be a string, got {message.get('role')!r}.")
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
