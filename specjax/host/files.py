"""Read JSON objects with clear errors; write files atomically."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises ValueError, with the file, if it has none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def parse_json_object(text: str, what: str) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError, beginning with ``what``, if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not valid JSON: {error}; got {text}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a JSON object, got {text}")
    return value


@contextlib.contextmanager
def write_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Yield a binary file that replaces ``path`` when the block ends without error.

    The bytes are on the disk before the name changes, so a crash leaves the old file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(hidden, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write a JSON file atomically."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, indent=indent, separators=separators) + "\n"
    with write_atomically(path) as file:
        file.write(text.encode())
