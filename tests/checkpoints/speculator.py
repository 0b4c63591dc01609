"""A random MLP speculator in the format of the IBM / FMS accelerators."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.checkpoints.language import HIDDEN, VOCAB

INNER, STAGES = 48, 3


def write_speculator(folder: Path, *, tied: bool, scale_input: bool) -> Path:
    """Write random stages as IBM does; of tied stages only what differs is stored."""
    rng, weights = np.random.default_rng(3), {}
    for i in range(STAGES):
        parts = {
            "emb": (VOCAB, INNER),
            "proj": (INNER, INNER if i else HIDDEN),
            "head": (VOCAB, INNER),
            "ln": (INNER,),
        }
        for part, shape in parts.items():
            if not tied or i == 0 or (i == 1 and part == "proj"):
                drawn = rng.standard_normal(shape) / np.sqrt(shape[-1] if part == "proj" else 1)
                weights[f"speculator.{part}.{i}.weight"] = drawn.astype(np.float32)
                if part == "ln":
                    weights[f"speculator.ln.{i}.bias"] = (0.1 * drawn).astype(np.float32)
    facts = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "vocab_size": VOCAB,
        "emb_dim": HIDDEN,
        "inner_dim": INNER,
        "n_predict": STAGES,
        "tie_weights": tied,
        "scale_input": scale_input,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(facts))
    save_file(weights, folder / "model.safetensors")
    return folder
