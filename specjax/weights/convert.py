"""Turn PyTorch's pickled weights (``.bin``, ``.pt``) into a safetensors checkpoint."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from specjax.host.files import read_json_object, write_json
from specjax.weights.load import INDEX, SINGLE, read_index
from specjax.weights.originals import complete, translate
from specjax.weights.pickled import import_torch, load_pickle
from specjax.weights.safetensors_file import read_header

PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
CONFIG = "config.json"
PICKLED = (".bin", ".pt", ".pth")
NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state")  # what trainers leave
KEPT = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".md")  # config, tokenizer, licence
STORED = {  # torch's types -> safetensors' names
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def convert(source: str | Path, destination: str | Path) -> Path:
    """Write ``source``'s weights as ``destination/model.safetensors``; return destination.

    Values and dtypes are kept; tensors that share memory (a tied head) are written out, each
    under its own name; Medusa heads in their authors' format get vLLM's names and config
    (``originals``). Config and tokenizer are copied. Shards are unpickled with ``weights_only``,
    one at a time and twice: once for the header, once for the data.

    Args:
        source: a folder with pickled weights.
        destination: a new folder, which appears whole or not at all.

    Returns:
        The destination.

    Raises:
        ImportError: torch is not installed (``pip install 'specjax[bridge]'``).
        ValueError: the destination exists, or the source has no pickled weights, already has
            safetensors, is damaged, or holds more than tensors.
    """
    source, destination = Path(source), Path(destination)
    if destination.exists() or destination.is_symlink():
        raise ValueError(f"{destination} exists already: name a new folder")
    files = find_pickles(source)
    import_torch()
    destination.absolute().parent.mkdir(parents=True, exist_ok=True)
    parent = destination.absolute().parent
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{destination.name}-") as scratch:
        folder = Path(scratch) / "checkpoint"
        folder.mkdir()
        with (folder / SINGLE).open("wb") as handle:
            _write(handle, files)
            handle.flush()
            os.fsync(handle.fileno())
        for file in sorted(source.iterdir()):
            if file.is_file() and file.suffix in KEPT and file.name != PICKLE_INDEX:
                shutil.copyfile(file, folder / file.name)
        if (folder / CONFIG).is_file():
            found = read_json_object(folder / CONFIG)
            completed = complete(found, read_header(folder / SINGLE))
            if completed != found:
                write_json(folder / CONFIG, completed)
        folder.rename(destination)
    return destination


def find_pickles(source: Path) -> list[Path]:
    """Return the pickled weight files: the index's shards, or the one file there is.

    Raises:
        ValueError: there is none, there are several without an index, a shard is missing, or
            the folder already holds safetensors.
    """
    if not source.is_dir():
        raise ValueError(f"{source} is not a folder")
    if (source / SINGLE).exists() or (source / INDEX).exists():
        raise ValueError(f"{source} holds safetensors already: load it as it is")
    if (source / PICKLE).is_file():
        return [source / PICKLE]
    if (source / PICKLE_INDEX).is_file():
        shards = sorted(set(read_index(source / PICKLE_INDEX).values()))
        missing = [shard for shard in shards if not (source / shard).is_file()]
        if missing:
            raise ValueError(f"{source} lacks shards its index names: {', '.join(missing)}")
        return [source / shard for shard in shards]
    found = sorted(
        file
        for file in source.iterdir()
        if file.suffix in PICKLED and not file.name.startswith(NOT_WEIGHTS)
    )
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise ValueError(f"{source}: need {PICKLE}, {PICKLE_INDEX} or one weight file, got {names}")
    return found


def _load(file: Path) -> dict[str, Any]:
    """Return the tensors of a pickled file by vLLM's names."""
    torch, state = import_torch(), load_pickle(file)
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not state:
        raise ValueError(f"{file} does not hold tensors by name")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ValueError(f"{file} does not hold tensors by name: {name!r}")
        if _dtype(value) not in STORED or value.layout != torch.strided:
            raise ValueError(f"{file}: {name} is {value.dtype} {value.layout}, not convertible")
    return translate(state)


def _write(handle: BinaryIO, files: list[Path]) -> None:
    """Write a header for all files' tensors, then the tensors, in the same order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for file in files:
        for name, value in _load(file).items():
            if name in header:
                raise ValueError(f"{file} repeats {name}, which another shard holds")
            start, end = end, end + value.numel() * value.element_size()
            shape, stored = list(value.shape), STORED[_dtype(value)]
            header[name] = {"dtype": stored, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    handle.write(len(text).to_bytes(8, "little") + text)
    for file in files:
        for value in _load(file).values():
            handle.write(_bytes(value))


def _bytes(value: Any) -> Any:
    flat = value.detach().contiguous().reshape(-1)
    return flat.view(import_torch().uint8).numpy().data


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")
