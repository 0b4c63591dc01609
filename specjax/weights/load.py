"""Load a Hugging Face checkpoint: every name and shape is checked before any data is read."""

import functools
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.config import ModelConfig
from specjax.models.build import shapes
from specjax.types import PyTree
from specjax.weights.names import HEAD, Route, decoder_name, members, table, tensor_name
from specjax.weights.safetensors_file import STORED, Entry, read_chunks, read_header

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LISTED = 5  # names shown per complaint
ALIGNMENT = 64  # bytes; on a CPU, JAX adopts a numpy array so aligned instead of copying it


def load_params(
    folder: str | Path, config: ModelConfig, device: Any = None, *, keep_dtype: bool = False
) -> PyTree:
    """Load the weights as ``shapes(config)`` lays them out, in its types.

    With ``keep_dtype`` each has the type that the checkpoint stores it in, where ``config.dtype``
    holds all its values: in float32 a pass then computes the same from half the bytes.

    Tensors are read one after the other in small pieces, converted on the way and put on
    ``device`` (a device or a sharding), so the host holds little more than what it returns.
    With tied embeddings a stored ``lm_head.weight`` is compared with the embeddings and
    dropped.

    Raises:
        ValueError: files are missing or damaged; tensors are missing, left over, misshapen,
            stored twice or not floating point; a value is NaN or infinite; a tied head
            differs from the embeddings.
    """
    entries, wanted = check_headers(folder, config)
    params: dict = {}
    for path, (leaf, stored) in wanted.items():
        found = {name: entries[name] for name in stored}
        leaf = stored_leaf(found, leaf) if keep_dtype else leaf
        place(params, path, read_tensor(found, leaf, device))
    if HEAD in entries and config.tie_word_embeddings:
        embedding = tensor_name(("embed_tokens", "weight"), table(config))
        _check_head(entries[HEAD], embedding, np.asarray(params["embed_tokens"]["weight"]))
    return params


def check_headers(
    folder: str | Path, config: ModelConfig
) -> tuple[dict[str, Entry], dict[Route, tuple[jax.ShapeDtypeStruct, list[str]]]]:
    """Check every name, shape and type of a checkpoint, and read none of its data.

    Returns its tensors by name, and of each parameter what it is and the names that it is made of.

    Raises:
        ValueError: as ``load_params`` for anything but values.
    """
    names = table(config)
    wanted: dict[Route, tuple[jax.ShapeDtypeStruct, list[str]]] = {}
    expected: dict[str, tuple[int, ...]] = {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(shapes(config))[0]:
        path = tuple(key.key for key in keys)
        each = members(path, leaf.shape, config)
        stored = {tensor_name(one, names): shape for one, shape in each}
        wanted[path] = leaf, list(stored)
        expected |= stored
    entries = find_tensors(Path(folder), functools.partial(decoder_name, config=config))
    if config.tie_word_embeddings and HEAD in entries:
        expected[HEAD] = expected[tensor_name(("embed_tokens", "weight"), names)]
    check_tensors(folder, entries, expected)
    return entries, wanted


def find_tensors(folder: Path, rename: Callable[[str], str | None]) -> dict[str, Entry]:
    """Return every weight of a checkpoint by its full name, from the headers alone.

    ``rename`` gives the full name of a stored one, or None for what is to be left alone.

    Raises:
        ValueError: there are no safetensors, a file is missing or damaged, the index leaves
            the folder or contradicts the files, or a name occurs twice.
    """
    placed = None
    files = [folder / SINGLE]
    if not files[0].is_file():
        if not (folder / INDEX).is_file():
            raise ValueError(_no_weights(folder))
        placed = read_index(folder / INDEX)
        files = [folder / shard for shard in sorted(set(placed.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(f"{folder} lacks shards its index names: {_listed(missing)}")
    entries: dict[str, Entry] = {}
    for file in files:
        for name, entry in read_header(file).items():
            full = rename(name)
            if full is None:
                continue
            if full in entries:
                other = entries[full].file.name
                raise ValueError(f"{folder} holds {name} twice, in {other} and {file.name}")
            if placed is not None and placed.get(name) != file.name:
                said = f"{placed.get(name, 'nothing')}, not {file.name}"
                raise ValueError(f"{folder / INDEX} says of {name}: {said}")
            entries[full] = entry
    return entries


def check_tensors(
    folder: str | Path, entries: dict[str, Entry], expected: dict[str, tuple[int, ...]]
) -> None:
    """Compare what a checkpoint holds with what its config asks for.

    Raises:
        ValueError: they differ; the message lists up to five names of every kind.
    """
    both = [name for name in expected if name in entries]
    complaints = {
        "missing": [name for name in expected if name not in entries],
        "unexpected": [name for name in entries if name not in expected],
        "misshapen": [
            f"{name} is {list(entries[name].shape)}, expected {list(expected[name])}"
            for name in both
            if entries[name].shape != expected[name]
        ],
        f"not {'/'.join(STORED)}": [
            f"{name} is {entries[name].dtype}" for name in both if entries[name].dtype not in STORED
        ],
    }
    strange, remedy = {entries[name].dtype for name in both} - {*STORED}, ""
    if strange == {"F64"}:
        remedy = "; store these as F32"
    elif strange:
        remedy = "; use the checkpoint as it was before quantization, or store these as BF16"
    said = [f"{kind} {len(names)}: {_listed(names)}" for kind, names in complaints.items() if names]
    if said:
        raise ValueError(
            f"the weights in {folder} do not match its config.json; {'; '.join(said)}{remedy}"
        )


def read_index(file: Path) -> dict[str, str]:
    """Return tensor name -> shard file name, refusing shards outside the index's folder.

    Raises:
        ValueError: the index is malformed, or a shard's name is not a plain file name.
    """
    try:
        placed = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        shards = set(placed.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not a checkpoint index: {error!r}") from None
    for shard in shards:
        plain = isinstance(shard, str) and shard not in ("", ".", "..")
        if not plain or any(mark in shard for mark in ("/", "\\", ":", "\0")):
            raise ValueError(f"{file} names a shard outside its folder: {shard!r}")
    if not shards:
        raise ValueError(f"{file} names no shards")
    return placed


def read_tensor(stored: dict[str, Entry], leaf: jax.ShapeDtypeStruct, device: Any) -> jax.Array:
    """Read a parameter in pieces, converting it on the way, and put it on a device.

    ``stored`` is its one tensor, or those that it stacks, in order.
    """
    out, start = _aligned(math.prod(leaf.shape), jnp.dtype(leaf.dtype)), 0
    for name, entry in stored.items():
        for first, values in read_chunks(entry, name, leaf.dtype.name):
            out[start + first : start + first + values.size] = values
        start += math.prod(entry.shape)
    return jax.device_put(out.reshape(leaf.shape), device)


def stored_leaf(stored: dict[str, Entry], leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return a parameter in the type that all of its tensors are stored in, if it loses nothing."""
    kinds = {STORED[entry.dtype][0] for entry in stored.values()}
    if len(kinds) != 1 or leaf.dtype != jnp.float32:
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, kinds.pop())


def _aligned(size: int, dtype: np.dtype) -> np.ndarray:
    raw = np.empty(size * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size * dtype.itemsize].view(dtype)


def _check_head(entry: Entry, embedding: str, table: np.ndarray) -> None:
    flat = table.reshape(-1)
    for first, values in read_chunks(entry, HEAD, table.dtype.name):
        if not np.array_equal(values, flat[first : first + values.size]):
            remedy = "set tie_word_embeddings to false, or remove the head"
            raise ValueError(f"embeddings are tied, but {HEAD} is not {embedding}: {remedy}")


def place(params: dict, path: Route, value: jax.Array) -> None:
    """Put a weight at its path in a nested dict."""
    for key in path[:-1]:
        params = params.setdefault(key, {})
    params[path[-1]] = value


def _no_weights(folder: Path) -> str:
    found = sorted(file.name for kind in ("bin", "pt", "pth") for file in folder.glob(f"*.{kind}"))
    if not found:
        return f"{folder} holds no weights: neither {SINGLE} nor {INDEX}"
    convert = f"`specjax convert {folder} DESTINATION`"
    return f"{folder} holds {_listed(found)} but no safetensors; run {convert}, then load that"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f", and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
