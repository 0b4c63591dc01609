"""Which fields of vLLM's requests are honoured, have no effect, or are refused: read from the code.

``python -m specjax.server.compatibility`` writes the table of the docs.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from specjax.server.fields import Body
from specjax.server.protocol import (
    IGNORED,
    UNSUPPORTED,
    Chat,
    Completion,
    Detokenize,
    Tokenize,
)

FIELDS = Path("tests/server/vllm_fields.json")  # of vLLM 0.32.0, by the names of its classes
PAGE = Path("docs/guide/serving-fields.md")
REQUESTS: dict[str, type[Body]] = {  # vLLM's class -> ours
    "CompletionRequest": Completion,
    "ChatCompletionRequest": Chat,
    "TokenizeCompletionRequest": Tokenize,
    "TokenizeChatRequest": Tokenize,
    "DetokenizeRequest": Detokenize,
}
ADDRESSES = {
    "CompletionRequest": "POST /v1/completions",
    "ChatCompletionRequest": "POST /v1/chat/completions",
    "TokenizeCompletionRequest": "POST /tokenize with a prompt",
    "TokenizeChatRequest": "POST /tokenize with messages",
    "DetokenizeRequest": "POST /detokenize",
}
TEXT_ONLY = ("media_io_kwargs", "mm_processor_kwargs")  # of images and sound
START = """# Fields of requests

Every field of vLLM 0.32.0's requests, read from the code (`python -m specjax.server.compatibility`
writes this page). A field that would change the text and is not served is refused with status 400
and its name in `param`; values of it that change nothing (null, `best_of` 1, ...) are accepted.
"""
MEANING = {
    "honoured": "Honoured",
    "ignored": "Without effect",
    "refused": "Refused by name",
}


def kind_of(request: type[Body], name: str) -> str:
    """Return what happens to a field: "honoured", "ignored", "refused", or "" if unknown."""
    if name in request.model_fields:
        return "honoured"
    if name in UNSUPPORTED and (request in (Chat, Completion) or name not in TEXT_ONLY):
        return "refused"
    return "ignored" if name in (*IGNORED, *TEXT_ONLY) else ""


def page(fields: Mapping[str, Sequence[str]]) -> str:
    """Return the page of the docs for vLLM's fields by the name of their request."""
    parts = [START]
    for name, request in REQUESTS.items():
        parts.append(f"\n## {ADDRESSES[name]}\n\n")
        for kind, meaning in MEANING.items():
            found = sorted(field for field in fields[name] if kind_of(request, field) == kind)
            if found:
                parts.append(f"- {meaning}: {', '.join(f'`{field}`' for field in found)}.\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(FIELDS.read_text(encoding="utf-8"))), encoding="utf-8")
