"""Random prompts: pieces of files outside the bundled models' training set, drawn by a seed."""

import json
from collections.abc import Callable, Sequence

import numpy as np

from specjax.train.data import Document

NUM_PROMPTS = 24
LENGTHS = 129, 187  # tokens, as the shipped prompts have
SEED = 0
TRIES = 100  # at a place to begin, in one file
Encode = Callable[[str], Sequence[int]]  # text to token ids


def draw(documents: Sequence[Document], encode: Encode, seed: int = SEED) -> list[dict]:
    """Return one random piece of whole lines from each of a random choice of held-out files.

    A piece begins at a line drawn at random and has the fewest lines that reach a number of
    tokens drawn from ``LENGTHS``; one that a long line or the end of the file spoils is drawn
    again. Raises ValueError for too few files.
    """
    rng = np.random.default_rng(seed)
    held_out = [one for one in documents if one.held_out]
    found = []
    for i in rng.permutation(len(held_out)):
        lines = held_out[i].text.splitlines(keepends=True)
        for _ in range(TRIES):
            start, wanted = int(rng.integers(max(len(lines), 1))), int(rng.integers(*LENGTHS))
            text = piece(lines[start:], encode, wanted)
            if text is not None:
                name = f"random-{held_out[i].path}:{start + 1}"
                found.append({"id": name, "category": "random", "turns": [text]})
                break
        if len(found) == NUM_PROMPTS:
            return found
    raise ValueError(f"only {len(found)} of {len(held_out)} held-out files have room for a prompt")


def piece(lines: Sequence[str], encode: Encode, wanted: int) -> str | None:
    """Return the fewest lines of at least ``wanted`` tokens; None if those are too many."""
    text = ""
    for line in lines:
        text += line
        number = len(encode(text))
        if number >= wanted:
            return text if number <= LENGTHS[1] else None
    return None


def to_lines(prompts: Sequence[dict]) -> str:
    """Return prompts in the format of the shipped files."""
    return "".join(json.dumps(one) + "\n" for one in prompts)
