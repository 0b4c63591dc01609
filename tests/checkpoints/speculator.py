"""Random speculators: an MLP as the IBM / FMS accelerators, an LSTM as Arctic's."""

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


def write_lstm(folder: Path, **changes: object) -> Path:
    """Write a random LSTM speculator as Arctic does: copies of what its stages share included."""
    rng, weights = np.random.default_rng(4), {}
    for gate in ("forget", "input", "output", "cell"):
        for i in range(STAGES):
            drawn = rng.standard_normal((INNER, INNER if i else HIDDEN)) / np.sqrt(INNER)
            weights[f"{gate}_proj.{i}.weight"] = drawn
        weights[f"{gate}_proj.2.weight"] = weights[f"{gate}_proj.1.weight"]
        weights[f"{gate}_emb.0.weight"] = rng.standard_normal((VOCAB, INNER))
    for part in ("cell_ln", "state_ln"):
        weights[f"{part}.0.weight"] = 1 + 0.3 * rng.standard_normal(INNER)
        weights[f"{part}.0.bias"] = 0.3 * rng.standard_normal(INNER)
    for i in range(STAGES):
        weights[f"head.{i}.weight"] = weights.get(
            "head.0.weight", rng.standard_normal((VOCAB, INNER))
        )
    facts = {
        "architectures": ["ArcticLSTMSpeculatorPreTrainedModel"],
        "base_model_archs": ["Qwen3ForCausalLM"],
        "model_type": "mlp_speculator",
        "vocab_size": VOCAB,
        "input_hidden_dim": HIDDEN,
        "inner_dim": str(INNER),
        "emb_dim": str(INNER),
        "proj_dim": str(INNER),
        "n_predict": STAGES,
        "num_lookahead_tokens": STAGES,
        "tie_weights": True,
        "tie_lstm_embs": True,
        "scale_input": True,
        "method": "sum_lstm",
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(facts | changes))
    stored = {name: value.astype(np.float32) for name, value in weights.items()}
    save_file(stored, folder / "model.safetensors")
    return folder
