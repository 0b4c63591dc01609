"""Answers that a target has given, as training text: what a drafter learns from while it serves.

A file of JSON lines, each with the ``token_ids`` of one request: its prompt, and what was verified
after it.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from specjax.host.files import write_atomically
from specjax.train.data import Corpus

SUFFIX = ".jsonl"
HELD_OUT_ONE_IN = 8  # of the answers, in their order


def write_answers(file: Path, answers: Iterable[Sequence[int]]) -> None:
    """Write the tokens of each request, atomically."""
    lines = (json.dumps({"token_ids": list(map(int, one))}) + "\n" for one in answers)
    with write_atomically(file) as handle:
        handle.write("".join(lines).encode())


def load_answers(file: Path, vocab_size: int, end: int) -> tuple[Corpus, str]:
    """Return the tokens, each answer followed by ``end``, and the file's hash.

    Raises:
        ValueError: there is no such file, a line is not of this form or has a token that the target
            lacks, or there are too few answers to hold one out.
    """
    if not file.is_file():
        raise ValueError(f"no such file of answers: {file}")
    data, sides = file.read_bytes(), ([], [])
    for number, line in enumerate(data.decode().splitlines()):
        try:
            tokens = np.asarray(json.loads(line)["token_ids"])
        except (ValueError, KeyError, TypeError):
            tokens = np.asarray(0.5)
        good = tokens.ndim == 1 and tokens.size and np.issubdtype(tokens.dtype, np.integer)
        if not good or tokens.min() < 0 or tokens.max() >= vocab_size:
            raise ValueError(
                f'{file}, line {number + 1}: needs {{"token_ids": [...]}} with tokens below '
                f"{vocab_size}, got {line[:60]!r}"
            )
        held_out = number % HELD_OUT_ONE_IN == HELD_OUT_ONE_IN - 1
        sides[held_out].extend((*tokens.tolist(), end))
    if not all(sides):
        raise ValueError(
            f"{file} needs at least {HELD_OUT_ONE_IN} answers: one in so many is held out"
        )
    train, held_out = (np.asarray(side, np.int32) for side in sides)
    return Corpus(train, held_out), hashlib.sha256(data).hexdigest()


def answers_manifest(file: Path, digest: str) -> dict:
    """Return what a run read: the file [name, bytes, sha256], and which lines were held out."""
    return {
        "files": [[file.name, file.stat().st_size, digest]],
        "held_out_rule": f"line number % {HELD_OUT_ONE_IN} == 0, counted from 1",
    }
