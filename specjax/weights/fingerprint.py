"""Tell whether two folders hold the same checkpoint, without reading its weights."""

import hashlib
from pathlib import Path


def fingerprint(folder: Path) -> str:
    """Return a hash of a checkpoint's config and tokenizer, and of its weight files' sizes."""
    found = hashlib.sha256()
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        path = folder / name
        found.update(path.read_bytes() if path.is_file() else b"-")
    for path in sorted(folder.glob("*.safetensors")):
        found.update(f"{path.name} {path.stat().st_size}".encode())
    return found.hexdigest()[:16]
