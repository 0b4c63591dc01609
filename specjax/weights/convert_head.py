"""Turn a drafting head from vLLM's own layout into the speculators format, and back."""

import shutil
import tempfile
from pathlib import Path

from safetensors import safe_open
from safetensors.numpy import save

from specjax.host.files import read_json_object, write_json
from specjax.weights.load import SINGLE
from specjax.weights.speculators import is_speculators, kind_of, to_speculators, translate

LAYOUTS = ("speculators", "vllm")


def convert_head(
    source: str | Path,
    destination: str | Path,
    layout: str,
    method: str,
    verifier: str | None = None,
    num_speculative_tokens: int = 5,
) -> Path:
    """Write a head in another layout; return the destination.

    Weights are copied bit for bit; only ``midlayer``, vLLM's name of EAGLE-3's first layer, is
    ``layers.0`` in the speculators format.

    Args:
        source: the folder of a head, in either layout.
        destination: a new folder, which appears whole or not at all.
        layout: "speculators", or "vllm" for vLLM's own.
        method: the head's method of speculation.
        verifier: the target, for "speculators".
        num_speculative_tokens: K of its proposal method, likewise.

    Raises:
        ValueError: the destination exists, there is no such layout, the head is in it already, or
            it has no counterpart there.
    """
    source, destination = Path(source), Path(destination)
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}: use one of {', '.join(LAYOUTS)}")
    if destination.exists() or destination.is_symlink():
        raise ValueError(f"{destination} exists already: name a new folder")
    if not (source / SINGLE).is_file():
        raise ValueError(f"{source} is no head in one file: no {SINGLE} in it")
    raw = read_json_object(source / "config.json")
    if is_speculators(raw) == (layout == "speculators"):
        raise ValueError(f"{source} is in the layout {layout!r} already")
    kind = kind_of(raw) if is_speculators(raw) else method
    if layout == "vllm":
        written = {**translate(raw), "torch_dtype": raw.get("torch_dtype", "bfloat16")}
    else:
        if kind == "eagle3" and any(raw.get(key) is not None for key in ("pard_token", MASK)):
            kind = "peagle"
        written = to_speculators(raw, kind, num_speculative_tokens, verifier)
    destination.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.absolute().parent) as scratch:
        folder = Path(scratch) / "head"
        folder.mkdir()
        write_json(folder / "config.json", written)
        copy_weights(source / SINGLE, folder / SINGLE, renamed=layout == "speculators")
        for file in sorted(source.iterdir()):
            if file.is_file() and file.name not in ("config.json", SINGLE):
                shutil.copyfile(file, folder / file.name)
        folder.rename(destination)
    return destination


MASK = "mask_token_id"


def copy_weights(source: Path, destination: Path, *, renamed: bool) -> None:
    """Copy a file of tensors, with ``layers.0`` for ``midlayer`` if ``renamed``."""
    with safe_open(source, framework="numpy") as file:
        names = list(file.keys())
        tensors = {name: file.get_tensor(name) for name in names}
        metadata = file.metadata()
    if renamed:
        tensors = {
            "layers.0." + name.removeprefix("midlayer.")
            if name.startswith("midlayer.")
            else name: x
            for name, x in tensors.items()
        }
    destination.write_bytes(save(tensors, metadata=metadata))
