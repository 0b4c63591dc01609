"""Save and load the responses that suffix decoding starts from, with their tokenizer's digest."""

import hashlib
import json
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from specjax.engine.text.tokenizer import Tokenizer
from specjax.host.files import write_atomically

FIELDS = {"tokens", "lengths", "vocabulary"}


def save(path: Path, responses: Collection[Sequence[int]], tokenizer: Tokenizer) -> None:
    """Write responses, oldest first, as an .npz file, atomically."""
    with write_atomically(path) as file:
        np.savez_compressed(
            file,
            tokens=np.asarray([token for one in responses for token in one], np.int32),
            lengths=np.asarray([len(one) for one in responses], np.int32),
            vocabulary=np.asarray(fingerprint(tokenizer)),
        )


def load(path: Path, tokenizer: Tokenizer | None = None) -> list[list[int]]:
    """Return the responses in a file, oldest first.

    Raises:
        ValueError: the file is no corpus, or its ids are of another tokenizer.
    """
    try:
        with np.load(path) as file:
            kept = {name: file[name] for name in FIELDS}
    except (zipfile.BadZipFile, EOFError, KeyError, ValueError):
        raise ValueError(f"{path} is no corpus: make one with specjax corpus build.") from None
    if tokenizer is not None and str(kept["vocabulary"]) != fingerprint(tokenizer):
        raise ValueError(
            f"the corpus {path} was made with another tokenizer: build it anew, with "
            "specjax corpus build --model and this model."
        )
    ends = np.cumsum(kept["lengths"])
    return [one.tolist() for one in np.split(kept["tokens"], ends[:-1])] if len(ends) else []


def fingerprint(tokenizer: Tokenizer) -> str:
    """Return a digest of a tokenizer's vocabulary: every token and its id."""
    ids = sorted(tokenizer.backend.get_vocab().items())
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()
