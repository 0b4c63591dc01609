"""Prompts from a file of JSON lines, a shard at a time."""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple


class PromptFile(NamedTuple):
    """What a pass over the file found; its size in memory is that of ``offsets``."""

    path: Path
    sha256: str
    num_prompts: int
    shard_size: int
    offsets: tuple[int, ...]  # of each shard's first byte, and the file's size
    lines: tuple[int, ...]  # the number of each shard's first line, from 1

    @property
    def num_shards(self) -> int:
        """How many shards the file has; the last one may be smaller."""
        return len(self.lines)


def parse_prompt(line: str, where: str) -> str:
    """Return the prompt of a line: a string, ``{"prompt": ...}`` or ``{"turns": [prompt, ...]}``.

    Raises ValueError, which begins with ``where``, for anything else.
    """
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if isinstance(value, dict):
        turns = value.get("turns")
        value = value.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
    if not isinstance(value, str):
        raise ValueError(f'{where} needs "prompt" or "turns", got {line.strip()!r}.')
    return value


def decode(raw: bytes, where: str) -> str:
    """Return a line's text. Raises ValueError, which begins with ``where``, if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text: {error}") from None


def read_file(path: Path, shard_size: int) -> PromptFile:
    """Read a file of JSON lines once, line by line, and check every prompt.

    Raises:
        ValueError: a line is no prompt, or there is none.
        OSError: the file cannot be read.
    """
    if shard_size < 1:
        raise ValueError(f"--shard-size must be at least 1, got {shard_size}.")
    sha256, count, position = hashlib.sha256(), 0, 0
    offsets, lines = [], []
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            where = f"{path} line {number}"
            if raw.strip():
                parse_prompt(decode(raw, where), where)
                if count % shard_size == 0:
                    offsets.append(position)
                    lines.append(number)
                count += 1
            sha256.update(raw)
            position += len(raw)
    if not count:
        raise ValueError(f"{path} has no prompts.")
    return PromptFile(
        path, sha256.hexdigest(), count, shard_size, (*offsets, position), tuple(lines)
    )


def read_shard(file: PromptFile, shard: int) -> list[str]:
    """Return the prompts of one shard."""
    start, end = file.offsets[shard : shard + 2]
    with open(file.path, "rb") as opened:
        opened.seek(start)
        raw = opened.read(end - start)
    found, first = [], file.lines[shard]
    for number, line in enumerate(raw.splitlines(), start=first):
        where = f"{file.path} line {number}"
        if line.strip():
            found.append(parse_prompt(decode(line, where), where))
    return found
