"""Turn a drafting head from vLLM's own layout into the speculators format, and back."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.numpy import save

from specjax.host.files import read_json_object, write_json
from specjax.weights.load import SINGLE
from specjax.weights.speculators import (
    as_vllm_reads,
    is_speculators,
    mask_of,
    to_speculators,
    translate,
)

LAYOUTS = ("speculators", "vllm")
USUAL_K = 5  # of a head that does not say how many tokens it was trained to draft


def convert_head(
    source: str | Path,
    destination: str | Path,
    layout: str,
    method: str,
    verifier: str | None = None,
    num_speculative_tokens: int | None = None,
) -> Path:
    """Write a head in another layout; return the destination.

    Weights are copied bit for bit; only ``midlayer``, vLLM's name of EAGLE-3's first layer, is
    ``layers.0`` in the speculators format.

    Args:
        source: the folder of a head, in either layout or in SpecForge's.
        destination: a new folder, which appears whole or not at all.
        layout: "speculators", or "vllm" for vLLM's own.
        method: the head's method of speculation.
        verifier: the target, for "speculators".
        num_speculative_tokens: K of its proposal method, likewise; None: as many as its block has
            (``block_size``), else 5.

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
    found = is_speculators(raw)
    written = (
        {**translate(raw), "torch_dtype": raw.get("torch_dtype", "bfloat16")}
        if found
        else as_vllm_reads(raw)
    )
    if (found and layout == "speculators") or (written == raw and layout == "vllm"):
        raise ValueError(f"{source} is in the layout {layout!r} already")
    if layout == "speculators":
        kind = "peagle" if method == "eagle3" and mask_of(raw) is not None else method
        number = num_speculative_tokens or usual_k(written, kind)
        written = to_speculators(written, kind, number, verifier)
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


def usual_k(raw: Mapping[str, Any], kind: str) -> int:
    """Return how many tokens a head drafts: a block, whose first one DFlash already knows."""
    size, anchor = raw.get("block_size"), raw.get("sample_from_anchor", kind == "dspark")
    return max(size - (not anchor), 1) if isinstance(size, int) else USUAL_K


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
