"""Hidden states on disk: one safetensors file per text, and a folder's manifest.

A file holds what vLLM's ExampleHiddenStatesConnector saves: ``token_ids`` int64 [T] and
``hidden_states`` [T, A, D], the residual stream after each of A layers, ascending (0: the
embeddings; the number of layers: before the final norm), in the model's dtype.

A folder's ``manifest.json`` is written first: it has the model and layers that the files come
from, and the names of all files to be written. Files are written atomically.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from specjax.host.files import read_json_object, write_atomically, write_json
from specjax.models.config import ModelConfig
from specjax.weights.safetensors_file import STORED

MANIFEST, FORMAT = "manifest.json", "specjax hidden states 1"


class HiddenStates(NamedTuple):
    """One text, and the target's hidden states at each of its T tokens."""

    token_ids: np.ndarray  # int64 [T]
    hidden_states: np.ndarray  # [T, A, D]


class Origin(NamedTuple):
    """The model and layers that a folder's files come from."""

    weights: str  # sha256 of config.json and the weights
    dtype: str
    layers: tuple[int, ...]
    hidden_size: int


class Manifest(NamedTuple):
    """The origin and names of a folder's files, in the order of the texts, which all differ."""

    model: str  # where the checkpoint was: for people
    origin: Origin
    files: tuple[str, ...]


def write_hidden_states(path: Path, token_ids: Sequence[int], hidden_states: np.ndarray) -> None:
    """Write one text's file, atomically."""
    tensors = {
        "token_ids": np.asarray(token_ids, np.int64),
        "hidden_states": np.ascontiguousarray(hidden_states),
    }
    with write_atomically(path) as file:
        file.write(save(tensors))


def read_hidden_states(path: Path) -> HiddenStates:
    """Return the content of one text's file; raises ValueError if it is damaged or no such file."""
    try:
        tensors = load_file(path)
        return HiddenStates(tensors["token_ids"], tensors["hidden_states"])
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is not a file of hidden states: {error!r}.") from None


def file_name(token_ids: Sequence[int]) -> str:
    """Return the name of a text's file, a hash of its tokens."""
    data = np.asarray(token_ids, "<i8").tobytes()
    return f"{hashlib.sha256(data).hexdigest()[:24]}.safetensors"


def is_done(path: Path, token_ids: Sequence[int], origin: Origin) -> bool:
    """Return whether a text's file exists.

    Raises ValueError if it exists and holds something else.
    """
    if not path.exists():
        return False
    try:
        with safe_open(path, "np") as file:
            ids, states = file.get_tensor("token_ids").tolist(), file.get_slice("hidden_states")
            found = STORED[states.get_dtype()][0].name, tuple(states.get_shape())
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is damaged: remove it ({error!r}).") from None
    wanted = origin.dtype, (len(token_ids), len(origin.layers), origin.hidden_size)
    if ids != list(token_ids) or found != wanted:
        raise ValueError(
            f"{path} holds another text or model: {found}, not {wanted}. Remove it, or choose "
            "another folder."
        )
    return True


def trace_origin(folder: Path, config: ModelConfig, layers: tuple[int, ...]) -> Origin:
    """Return a checkpoint's origin: a hash of its config.json and safetensors, and the layers."""
    digest = hashlib.sha256()
    for path in (folder / "config.json", *sorted(folder.glob("*.safetensors"))):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return Origin(digest.hexdigest(), config.dtype, layers, config.hidden_size)


def open_folder(folder: Path, manifest: Manifest) -> None:
    """Write a folder's manifest, making the folder if needed.

    Raises ValueError if it holds files of another origin, or files without a manifest.
    """
    if (folder / MANIFEST).exists():
        there = read_manifest(folder).origin._asdict()
        for name, wanted in manifest.origin._asdict().items():
            if there[name] != wanted:
                raise ValueError(
                    f"{folder} was made with {name}={there[name]!r}, not {wanted!r}: choose "
                    "another folder, or remove this one."
                )
    elif any(folder.glob("*.safetensors")):
        raise ValueError(f"{folder} has files and no {MANIFEST}: choose another folder.")
    origin = {"origin": manifest.origin._asdict()}
    write_json(folder / MANIFEST, {"format": FORMAT} | manifest._asdict() | origin)


def read_manifest(folder: Path) -> Manifest:
    """Return a folder's manifest.

    Raises ValueError if there is none, or it is damaged or of another format.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} has no {MANIFEST}: it is no folder of `specjax extract`.")
    raw: dict[str, Any] = read_json_object(path)
    if raw.get("format") != FORMAT:
        raise ValueError(f"{path}: the format is {raw.get('format')!r}, expected {FORMAT!r}.")
    try:
        origin = Origin(**raw["origin"])
        origin = origin._replace(layers=tuple(origin.layers))
        return Manifest(raw["model"], origin, tuple(raw["files"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from None
