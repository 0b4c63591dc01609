"""The shipped draft model with another vocabulary: fewer tokens, some others, other ids."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from specjax.bundled import resolve

KEPT, FOREIGN = 1500, 40  # of 2,048 tokens; and tokens that the target lacks
STRIDE = 13  # has no factor in common with 1,540 or 2,048


def foreign_draft(parent: Path, kept: int = KEPT, foreign: int = FOREIGN) -> Path:
    """Write the model with its first ``kept`` tokens and others beside them, shuffled.

    The later tokens of byte-pair encoding are made of the earlier ones, so what is kept is
    whole. The foreign tokens have embeddings of kept ones: where these are likely, so are they.
    """
    source, folder = resolve("bundled:draft"), parent / "draft"
    folder.mkdir()
    new = STRIDE * np.arange(kept + foreign) % (kept + foreign)  # a token's new id
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    model = tokenizer["model"]
    old = {word: i for word, i in model["vocab"].items() if i < kept}
    old |= {f"<foreign {i}>": kept + i for i in range(foreign)}
    model["vocab"] = {word: int(new[i]) for word, i in old.items()}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in old]
    tokenizer["added_tokens"][0]["id"] = end = int(new[0])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_bytes((source / "tokenizer_config.json").read_bytes())
    config = json.loads((source / "config.json").read_text())
    config |= {"vocab_size": len(new), "eos_token_id": end, "pad_token_id": end}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(source / "model.safetensors")
    table = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = np.concatenate([table[:kept], table[:foreign]])[
        np.argsort(new)
    ]
    save_file(weights, folder / "model.safetensors")
    return folder
