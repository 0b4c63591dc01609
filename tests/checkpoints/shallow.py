"""The first layers of the shipped target: real weights and words, a quarter of the compiling."""

import json
from pathlib import Path

from safetensors.numpy import load_file, save_file

from specjax.bundled import resolve


def shallow_target(parent: Path, num_layers: int = 2) -> Path:
    """Write the target without its later layers; the shipped draft model fits it as before."""
    source, folder = resolve("bundled"), parent / "target"
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    config |= {"num_hidden_layers": num_layers, "layer_types": ["full_attention"] * num_layers}
    (folder / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((source / file).read_bytes())
    layers = tuple(f"model.layers.{i}." for i in range(num_layers))
    weights = load_file(source / "model.safetensors")
    kept = {k: v for k, v in weights.items() if "layers." not in k or k.startswith(layers)}
    save_file(kept, folder / "model.safetensors")
    return folder
