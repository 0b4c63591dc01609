"""Write the cycle language's checkpoints: ``python -m tests.checkpoints.cycle OUT``."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.checkpoints import heads, targets
from tests.checkpoints.language import VOCAB, Weights, draw, stream

TARGET = targets.QWEN3 | {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 8}
LLAMA = targets.LLAMA | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 3}
DRAFT = TARGET | {"num_hidden_layers": 2}
MIMO = targets.MIMO | {"num_hidden_layers": 3}
DEEPSEEK = targets.DEEPSEEK | {"num_hidden_layers": 2, "first_k_dense_replace": 3}
DEEPSEEK_EXPERTS = DEEPSEEK | targets.EXPERTS
# How loud the noise is, tuned so that acceptance is partial under every method.
GAINS = {"target": 0.13, "llama": 0.18, "draft": 0.18, "mimo": 0.18, "deepseek": 0.18, "head": 0.15}
GAINS["pard"] = GAINS["draft"]
GAINS["deepseek_experts"] = 0.12


def build(folder: Path, seed: int = 0) -> dict[str, Path]:
    """Write every checkpoint below ``folder``; return their folders by name."""
    language = draw(seed)

    def decoder(name: str, config: dict[str, Any]) -> Weights:
        return targets.decoder(stream(seed, name), language, GAINS[name], config)

    def head(name: str, draw_head, *config) -> Weights:
        return draw_head(stream(seed, name + " head"), language, GAINS["head"], *config)

    mimo_mtp = head("mimo", targets.mimo_mtp, MIMO)
    after = f"model.layers.{DEEPSEEK['num_hidden_layers']}."

    def deepseek(name: str, config: dict[str, Any]) -> Weights:
        mtp = head(name, targets.deepseek_mtp, config)
        return decoder(name, config) | targets.prefixed(after, mtp)

    checkpoints = {
        "target": (TARGET, decoder("target", TARGET)),
        "llama": (LLAMA, decoder("llama", LLAMA)),
        "draft": (DRAFT, decoder("draft", DRAFT)),
        "eagle": (heads.EAGLE, head("eagle", heads.eagle)),
        "eagle3": (heads.EAGLE3_LLAMA, head("eagle3", heads.eagle3, heads.EAGLE3_LLAMA)),
        "eagle3_reduced": (heads.EAGLE3_QWEN3, head("reduced", heads.eagle3, heads.EAGLE3_QWEN3)),
        "eagle3_norm_before_fc": (
            heads.EAGLE3_NORM_BEFORE_FC,
            head("before_fc", heads.eagle3, heads.EAGLE3_NORM_BEFORE_FC),
        ),
        "eagle3_1": (heads.EAGLE3_1, head("eagle3_1", heads.eagle3, heads.EAGLE3_1)),
        "eagle3_latent": (
            heads.EAGLE3_LATENT,
            head("latent", heads.eagle3_latent, heads.EAGLE3_LATENT),
        ),
        "peagle": (heads.PEAGLE, head("peagle", heads.peagle)),
        "dflash": (heads.DFLASH, head("dflash", heads.dflash, heads.DFLASH)),
        "dflash_causal": (
            heads.DFLASH_CAUSAL,
            head("dflash", heads.dflash, heads.DFLASH_CAUSAL),
        ),
        "dflash_sliding": (
            heads.DFLASH_SLIDING,
            head("dflash", heads.dflash, heads.DFLASH_SLIDING),
        ),
        "dflash_mixed": (
            heads.DFLASH_MIXED,
            head("dflash", heads.dflash, heads.DFLASH_MIXED),
        ),
        "dspark": (heads.DSPARK, head("dspark", heads.dspark, heads.DSPARK)),
        "dflash_reduced": (
            heads.DFLASH_REDUCED,
            head("dflash", heads.dflash, heads.DFLASH_REDUCED),
        ),
        "pard": (DRAFT | {"pard_token": 7}, decoder("pard", DRAFT)),
        "medusa": (heads.MEDUSA, head("medusa", heads.medusa)),
        "medusa_original": (
            heads.MEDUSA | {"medusa_fc_bias": True},
            head("original", heads.medusa_original),
        ),
        "mimo": (MIMO, decoder("mimo", MIMO) | targets.prefixed("model.mtp_layers.0.", mimo_mtp)),
        "deepseek": (DEEPSEEK, deepseek("deepseek", DEEPSEEK)),
        "deepseek_experts": (DEEPSEEK_EXPERTS, deepseek("deepseek_experts", DEEPSEEK_EXPERTS)),
    }
    return {name: write(folder / name, *checkpoint) for name, checkpoint in checkpoints.items()}


def write(folder: Path, config: dict[str, Any], weights: Weights) -> Path:
    """Write one checkpoint in float32 with a tokenizer whose words are the ids themselves."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {str(token): token for token in range(VOCAB)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "0"},
    }
    files = {
        "config": config,
        "tokenizer": tokenizer,
        "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")
    stored = {
        name: np.ascontiguousarray(value, np.float32 if value.dtype == np.float64 else None)
        for name, value in weights.items()
    }
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


if __name__ == "__main__":
    for name, path in build(Path(sys.argv[1])).items():
        print(name, path)
