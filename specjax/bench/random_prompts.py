"""Random prompts: pieces of files outside the bundled models' training set, drawn by a seed."""

import json
from collections.abc import Callable, Sequence

import numpy as np

from specjax.train.data import Document

NUM_PROMPTS = 96  # the target soon loops on most of them: a quarter are left to measure on
LENGTHS = 129, 187  # tokens, as the shipped prompts have
SEED = 0
TRIES = 100  # at a place to begin, in one file
Encode = Callable[[str], Sequence[int]]  # text to token ids


def draw(documents: Sequence[Document], encode: Encode, seed: int = SEED) -> list[dict]:
    """Return random pieces of whole lines from the held-out files, file by file in random order.

    A piece begins at a line drawn at random and has the fewest lines that reach a number of
    tokens drawn from ``LENGTHS``; one that a long line, the end of the file or an earlier piece
    spoils is drawn again. Each file gives one, then each that has room a second one, and so on.
    Raises ValueError for too little text.
    """
    rng = np.random.default_rng(seed)
    held_out = [one for one in documents if one.held_out]
    taken: list[set[int]] = [set() for _ in held_out]  # lines of each file, by number
    found: list[dict] = []
    while len(found) < NUM_PROMPTS:
        before = len(found)
        for i in rng.permutation(len(held_out)):
            lines = held_out[i].text.splitlines(keepends=True)
            place = free_place(lines, taken[i], encode, rng)
            if place is not None:
                taken[i].update(place)
                text = "".join(lines[place.start : place.stop])
                name = f"random-{held_out[i].path}:{place.start + 1}"
                found.append({"id": name, "category": "random", "turns": [text]})
        if len(found) == before:
            raise ValueError(f"{len(held_out)} held-out files have room for {before} prompts only")
    return found[:NUM_PROMPTS]


def free_place(
    lines: Sequence[str], taken: set[int], encode: Encode, rng: np.random.Generator
) -> range | None:
    """Return the line numbers of a random piece that is not taken; None if no try finds one."""
    for _ in range(TRIES):
        start, wanted = int(rng.integers(max(len(lines), 1))), int(rng.integers(*LENGTHS))
        text = piece(lines[start:], encode, wanted)
        if text is not None:
            place = range(start, start + len(text.splitlines()))
            if taken.isdisjoint(place):
                return place
    return None


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
