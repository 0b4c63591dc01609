"""Load a Hugging Face checkpoint: every name and shape is checked before any data is read."""

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.core.types import Int8Matrix, PyTree
from specjax.models.build import shapes
from specjax.models.config import ModelConfig
from specjax.weights.int8 import read_int8, stays_int8
from specjax.weights.names import HEAD, Route, decoder_name, stored_as, table, tensor_name
from specjax.weights.packed import Packed, StaticBias, output_scales
from specjax.weights.quantization import UNQUANTIZED, Source, read_scheme
from specjax.weights.reader import PIECE, Part, open_source, read_tensor
from specjax.weights.safetensors_file import STORED, Entry, read_header

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LAYER = re.compile(r"\.layers\.(\d+)\.")  # in a tensor's name
LISTED = 5  # names shown per complaint


def load_params(
    folder: str | Path,
    config: ModelConfig,
    device: Any = None,
    *,
    keep_dtype: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PyTree:
    """Load a decoder's weights, as a nested dict like ``shapes(config)``.

    Tensors are read one after the other in small pieces, converted and put on their devices, so
    that the host holds little more than the result. Quantized ones become what they stand for
    (``quantization``). With tied embeddings a stored ``lm_head.weight`` is compared with the
    embeddings and dropped.

    Args:
        folder: a Hugging Face checkpoint with safetensors.
        config: from ``hf_config.read_config``.
        device: a device, a sharding, or a function that returns the sharding of a parameter from
            its path and shape; each device is given its part only.
        keep_dtype: keep the checkpoint's dtype if ``config.dtype`` is float32, which has all its
            values: a forward pass then gives the same numbers and reads half the bytes. That of a
            quantized matrix is bfloat16, or float16 if config.json says so; or it stays int8
            (``int8``), and is then not rounded.
        progress: called with the bytes of files read so far, and of all, after each parameter.

    Raises:
        ValueError: files are missing or damaged; tensors are missing, left over, misshapen,
            stored twice or not floating point; a value is NaN or infinite; a tied head
            differs from the embeddings.
    """
    sources, wanted = check_headers(folder, config)
    params: dict = {}
    read: dict[str, int] = {}
    total = sum(source.size for source in sources.values())
    for path, (leaf, stored) in wanted.items():
        found = [(part, sources[part.name]) for part in stored]
        where = device(path, leaf.shape) if callable(device) else device
        if keep_dtype and stays_int8(path, found, leaf):
            place(params, path, read_int8(found, leaf, where))
        else:
            leaf = stored_leaf([source for _, source in found], leaf) if keep_dtype else leaf
            place(params, path, read_tensor(found, leaf, where))
        read |= {part.name: source.size for part, source in found}
        progress(sum(read.values()), total)
    for name in sources.keys() - read.keys() - {HEAD}:
        check_no_bias(name, sources[name])
    if HEAD in sources and config.tie_word_embeddings:
        embedding = tensor_name(("embed_tokens", "weight"), table(config))
        for shard in params["embed_tokens"]["weight"].addressable_shards:
            _check_head(sources[HEAD], embedding, np.asarray(shard.data), shard.index[0].start or 0)
    progress(total, total)
    return params


def check_headers(
    folder: str | Path, config: ModelConfig
) -> tuple[dict[str, Source], dict[Route, tuple[jax.ShapeDtypeStruct, list[Part]]]]:
    """Check every name, shape and dtype of a checkpoint, without reading its weights.

    Returns:
        Its tensors by name; and each parameter's shape and the parts that it is made of.

    Raises:
        ValueError: as ``load_params`` for anything but values.
    """
    names = table(config)
    wanted: dict[Route, tuple[jax.ShapeDtypeStruct, list[Part]]] = {}
    expected: dict[str, tuple[int, ...]] = {}
    sources = find_tensors(Path(folder), functools.partial(decoder_name, config=config))
    for keys, leaf in jax.tree_util.tree_flatten_with_path(shapes(config))[0]:
        path = tuple(key.key for key in keys)
        stored = stored_as(path, leaf.shape, config, sources)
        wanted[path] = leaf, [part for part, _ in stored]
        expected |= {part.name: shape for part, shape in stored}
    if config.tie_word_embeddings and HEAD in sources:
        expected[HEAD] = expected[tensor_name(("embed_tokens", "weight"), names)]
    # packers write biases, of zeros, for all layers that they quantize
    expected |= {
        name: source.shape
        for name, source in sources.items()
        if name not in expected
        and isinstance(sources.get(name.removesuffix(".bias") + ".weight"), Packed)
    }
    check_tensors(folder, sources, expected)
    return sources, wanted


def check_depth(folder: str | Path, config: ModelConfig) -> None:
    """Raise ValueError if no tensor belongs to the last of the layers that config.json declares.

    To be called before anything is made for each of them: a million layers take an hour.
    """
    names = find_tensors(Path(folder), functools.partial(decoder_name, config=config))
    found = [int(match[1]) for match in map(LAYER.search, names) if match]
    if config.num_layers > (stored := max(found, default=-1) + 1):
        raise ValueError(
            f"{folder}: config.json declares {config.num_layers} layers, its weights end after "
            f"{stored}"
        )


def find_tensors(folder: Path, rename: Callable[[str], str | None]) -> dict[str, Source]:
    """Return every weight of a checkpoint by its full name, from the headers alone.

    ``rename`` returns the full name of a stored one, or None if it is to be ignored.

    Raises:
        ValueError: there are no safetensors, a file is missing or damaged, the index leaves
            the folder or contradicts the files, a name occurs twice, or a quantized matrix is not
            whole.
    """
    entries: dict[str, Entry] = {}
    files, placed = find_files(folder)
    for file in files:
        for name, entry in read_header(file).items():
            if name in entries:
                other = entries[name].file.name
                raise ValueError(f"{folder} holds {name} twice, in {other} and {file.name}")
            entries[name] = entry
            if placed is not None and placed.get(name) != file.name and rename(name) is not None:
                listed = f"{placed.get(name, 'nothing')}, not {file.name}"
                raise ValueError(f"{folder} has an index that says of {name}: {listed}")
    scheme = read_scheme(folder)
    gathered: dict[str, Source] = {**entries} if scheme is None else scheme.gather(entries)
    sources: dict[str, Source] = {}
    for name, source in gathered.items():
        full = rename(name)
        if full in sources:
            other = sources[full].file.name
            raise ValueError(f"{folder} holds {name} twice, in {other} and {source.file.name}")
        if full is not None:
            sources[full] = source
    return sources


def find_files(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """Return the weight files of a folder, and the file of each tensor if it has an index.

    These are Hugging Face's names or, failing these, the only index or the only file that there is.

    Raises:
        ValueError: there is none, or the index is damaged or names files that are not there.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE], None
    index = folder / INDEX
    if not index.is_file():
        indexes = sorted(folder.glob("*.safetensors.index.json"))
        files = sorted(folder.glob("*.safetensors"))
        if not indexes and len(files) == 1:
            return files, None
        if len(indexes) != 1:
            raise ValueError(_no_weights(folder))
        index = indexes[0]
    placed = read_index(index)
    files = [folder / shard for shard in sorted(set(placed.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(f"{folder} lacks shards its index names: {_listed(missing)}")
    return files, placed


def check_tensors(
    folder: str | Path, entries: Mapping[str, Source], expected: dict[str, tuple[int, ...]]
) -> None:
    """Check a checkpoint's tensors against the names and shapes that its config implies.

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
        remedy = "; config.json does not say how they are quantized: add its quantization_config, "
        remedy += "or use the checkpoint as it was before"
    lines = [
        f"{kind} {len(names)}: {_listed(names)}" for kind, names in complaints.items() if names
    ]
    if lines:
        raise ValueError(
            f"the weights in {folder} do not match its config.json; {'; '.join(lines)}{remedy}"
        )


def read_index(file: Path) -> dict[str, str]:
    """Return each tensor's shard file name, all of them in the index's folder.

    Raises:
        ValueError: the index is malformed, or a shard's name is not a plain file name.
    """
    try:
        placed = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        shards = set(placed.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is not a checkpoint index: {error!r}") from None
    for shard in shards:
        plain = isinstance(shard, str) and shard not in ("", ".", "..")
        if not plain or any(mark in shard for mark in ("/", "\\", ":", "\0")):
            raise ValueError(f"{file} names a shard outside its folder: {shard!r}")
    if not shards:
        raise ValueError(f"{file} names no shards")
    return placed


def stored_leaf(sources: list[Source], leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return a parameter's shape, in its tensors' dtype if they have one and ours is float32."""
    kinds = {STORED[source.dtype][0] for source in sources}
    if len(kinds) != 1 or leaf.dtype != jnp.float32:
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, kinds.pop())


def check_no_bias(name: str, source: Source) -> None:
    """Raise ValueError unless a bias that the model has no place for is zero.

    One that msModelSlim made was rounded to a step of its output scale.
    """
    values = open_source(name, source, np.float32)(0, source.shape[0])[:, 0]
    step = np.abs(output_scales(source)) if isinstance(source, StaticBias) else np.float32(0)
    if (np.abs(values) > step).any():
        raise ValueError(
            f"{name} is not zero, and this architecture has no such bias: {UNQUANTIZED}, or one "
            "that was quantized without smoothing outliers"
        )


def _check_head(source: Source, embedding: str, table: np.ndarray, first: int) -> None:
    """Compare a stored head with rows of the embeddings, from ``first`` on."""
    rows = open_source(HEAD, source, table.dtype)
    each = max(1, PIECE // table.shape[1])
    for start in range(0, len(table), each):
        some = table[start : start + each]
        if not np.array_equal(rows(first + start, first + start + len(some)), some):
            remedy = "set tie_word_embeddings to false, or remove the head"
            raise ValueError(f"embeddings are tied, but {HEAD} is not {embedding}: {remedy}")


def place(params: dict, path: Route, value: jax.Array | Int8Matrix) -> None:
    """Set a weight at its path in a nested dict."""
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
