"""Checkpoints of any architecture with random weights, for time and memory alone."""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from specjax.bundled import resolve
from specjax.host.files import write_atomically, write_json
from specjax.models.build import shapes
from specjax.models.config import ModelConfig
from specjax.weights.hf_config import parse_config
from specjax.weights.names import members, table, tensor_name

PIECE = 2**22  # numbers drawn at a time


def write_random(folder: Path, described: Mapping[str, Any]) -> int:
    """Write a checkpoint in bfloat16, piece by piece; return the bytes of its weights.

    ``described`` is its config.json. The tokenizer is the bundled one, whatever the vocabulary:
    prompts are token ids.
    """
    config = parse_config(described)
    write_json(folder / "config.json", dict(described))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(resolve("bundled") / name, folder)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors(config):
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    with write_atomically(folder / "model.safetensors") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape in tensors(config):
            left, scale = int(np.prod(shape)), shape[-1] ** -0.5
            while left:
                number = min(left, PIECE)
                drawn = rng.standard_normal(number, np.float32) * scale
                values = drawn if len(shape) > 1 else np.ones(number)
                file.write(values.astype(ml_dtypes.bfloat16).tobytes())
                left -= number
    return end


def num_bytes(config: ModelConfig) -> int:
    """Return the bytes of a checkpoint's weights, in bfloat16."""
    return sum(2 * math.prod(shape) for _, shape in tensors(config))


def tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield Hugging Face's name and the shape of every tensor, in the file's order."""
    names = table(config)
    for keys, leaf in jax.tree_util.tree_flatten_with_path(shapes(config))[0]:
        for path, shape in members(tuple(key.key for key in keys), leaf.shape, config):
            yield tensor_name(path, names), shape
