"""Checkpoints of Qwen3's architecture with random weights, for time and memory alone."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from specjax.bundled import resolve
from specjax.host.files import write_atomically, write_json
from specjax.models.config import ModelConfig
from specjax.weights.save import hf_config

PIECE = 2**22  # numbers drawn at a time


def write_random(folder: Path, config: ModelConfig) -> int:
    """Write a checkpoint in bfloat16, piece by piece; return the bytes of its weights.

    The tokenizer is the bundled one, whatever the vocabulary: prompts are token ids.
    """
    write_json(folder / "config.json", hf_config(config, dtype="bfloat16", end=0))
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


def tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield Hugging Face's name and the shape of every tensor, in the file's order."""
    hidden, width = config.hidden_size, config.intermediate_size
    queries = config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)
    yield "model.norm.weight", (hidden,)
    for i in range(config.num_layers):
        parts = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (config.head_dim,),
            "self_attn.k_norm": (config.head_dim,),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (width, hidden),
            "mlp.up_proj": (width, hidden),
            "mlp.down_proj": (hidden, width),
        }
        for name, shape in parts.items():
            yield f"model.layers.{i}.{name}.weight", shape
