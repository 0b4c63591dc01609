"""Training text: Python source files, their manifest, split and tokens."""

import hashlib
import json
import os
import sysconfig
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from specjax.host.files import write_atomically
from specjax.host.group import is_first

SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})
HELD_OUT_ONE_IN = 50


class Document(NamedTuple):
    """One source file."""

    path: str  # relative, with forward slashes
    num_bytes: int
    sha256: str  # of the bytes
    text: str
    held_out: bool


class Corpus(NamedTuple):
    """Token streams: every document followed by one end-of-text token."""

    train: np.ndarray  # uint16 [tokens]
    held_out: np.ndarray  # uint16 [tokens]


def is_held_out(path: str) -> bool:
    """Return whether a file is held out for evaluation: about 2%, by a hash of its path.

    The path alone decides, so a file stays on its side when its text or its neighbours
    change between Python versions.
    """
    return int(hashlib.sha256(path.encode()).hexdigest()[:8], 16) % HELD_OUT_ONE_IN == 0


def read_documents(source: str | None = None) -> list[Document]:
    """Return every UTF-8 .py file under ``source``, sorted by relative path.

    None means the running interpreter's standard library: its tests included, installed
    packages not, nor ``_sysconfigdata*``, which the build machine generated. Links are not
    followed. Files in other encodings (four, in the tests) are left out. Raises ValueError
    when a folder is missing or yields nothing to learn from or nothing to measure on.
    """
    root = Path(source or sysconfig.get_paths()["stdlib"])
    if not root.is_dir():
        raise ValueError(f"no such folder of Python source: {root}")
    paths = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        paths += [
            Path(folder, name)
            for name in files
            if name.endswith(".py") and not name.startswith("_sysconfigdata")
        ]
    documents = []
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in paths):
        if path.is_symlink():
            continue
        data = path.read_bytes()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            continue
        digest = hashlib.sha256(data).hexdigest()
        documents.append(Document(name, len(data), digest, text, is_held_out(name)))
    num_held_out = sum(document.held_out for document in documents)
    if not 0 < num_held_out < len(documents):
        raise ValueError(
            f"{root} has {len(documents)} readable .py files, {num_held_out} of them held out: "
            f"both sides of the split need some"
        )
    return documents


def manifest(documents: list[Document]) -> dict:
    """Return one row [path, bytes, sha256, held out] per file that was read."""
    return {
        "files": [[d.path, d.num_bytes, d.sha256, d.held_out] for d in documents],
        "num_files": len(documents),
        "num_bytes": sum(d.num_bytes for d in documents),
        "held_out_rule": f"int(sha256(path)[:8], 16) % {HELD_OUT_ONE_IN} == 0",
    }


def fingerprint(documents: list[Document], tokenizer: Tokenizer) -> str:
    """Return one hash for the text, its split and its tokenizer."""
    inputs = json.dumps(manifest(documents)) + tokenizer.to_str()
    return hashlib.sha256(inputs.encode()).hexdigest()


def encode(documents: list[Document], tokenizer: Tokenizer, end: int) -> np.ndarray:
    """Concatenate the documents' tokens, each followed by ``end``: uint16 [tokens]."""
    encoded = tokenizer.encode_batch([d.text for d in documents], add_special_tokens=False)
    parts = [np.asarray([*one.ids, end], np.uint16) for one in encoded]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint16)


def load_corpus(documents: list[Document], tokenizer: Tokenizer, end: int, cache: Path) -> Corpus:
    """Return the tokens of the training and held-out files, from ``cache`` (an .npz) if it matches.

    The cache is written whole under another name, then renamed: a killed run leaves either
    the old file or the new one.
    """
    key = fingerprint(documents, tokenizer)
    try:
        with open(cache, "rb") as file, np.load(file) as stored:
            if str(stored["key"]) == key:
                return Corpus(stored["train"], stored["held_out"])
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        pass
    corpus = Corpus(
        encode([d for d in documents if not d.held_out], tokenizer, end),
        encode([d for d in documents if d.held_out], tokenizer, end),
    )
    if is_first():
        with write_atomically(cache) as file:
            np.savez(file, key=np.asarray(key), **corpus._asdict())
    return corpus
