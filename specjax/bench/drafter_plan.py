"""The sizes that ``specjax bench drafters`` measures, and texts of those sizes."""

import sysconfig
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specjax.bundled import resolve
from specjax.engine.text.tokenizer import load_tokenizer

DEPTH = 24  # vLLM's default of suffix decoding: the longest match, and K
NGRAM = 1, 4  # shortest and longest match
RESPONSE = 256  # tokens of each response in the index
LOOPS = 16  # proposals, or appended tokens, per call
ROOM = 512  # tokens of a text behind its context


class Sizes(NamedTuple):
    """The contexts, batches and corpora that are measured."""

    contexts: tuple[int, ...] = (256, 2048, 16384)
    corpora: tuple[int, ...] = (0, 10_000, 100_000, 1_000_000)
    batches: tuple[int, ...] = (1, 32)


def library(num_tokens: int) -> np.ndarray:
    """Return the beginning of the standard library, in the bundled target's tokens."""
    encode, found, total = load_tokenizer(resolve("bundled")).encode, [], 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        found.append(np.asarray(encode(path.read_text("utf-8", "replace")), np.int32))
        total += len(found[-1])
        if total >= num_tokens:
            break
    return np.resize(np.concatenate(found), num_tokens)


def rows_of(sizes: Sizes, tokens: np.ndarray, batch: int, context: int) -> np.ndarray:
    """Return the texts of a batch, taken after the largest corpus: [batch, context + ROOM]."""
    width = context + ROOM
    return tokens[max(sizes.corpora) :][: batch * width].reshape(batch, width)
