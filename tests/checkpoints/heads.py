"""Heads on a target's hidden states: EAGLE, EAGLE-3 and Medusa."""

from typing import Any

import numpy as np

from tests.checkpoints.language import (
    ANCHOR,
    EMBED_SCALE,
    HEAD_DIM,
    HIDDEN,
    SHARPNESS,
    STREAM_SCALE,
    VOCAB,
    Language,
    Weights,
    look_back,
    mlp,
    noise,
    norm,
    prefixed,
)
from tests.checkpoints.targets import (
    DEEPSEEK,
    LATENT,
    LLAMA,
    NOPE_DIM,
    QUERY_RANK,
    QWEN3,
    ROPE_DIM,
    attention,
)

MEDUSA_HEADS = 3
TAPS = 3  # EAGLE-3's tapped layers
DRAFT_VOCAB = 224

EAGLE = LLAMA | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
EAGLE3 = {
    "num_hidden_layers": 1,
    "num_attention_heads": 2 * HIDDEN // HEAD_DIM,
    "num_key_value_heads": 2 * HIDDEN // HEAD_DIM,
    "draft_vocab_size": VOCAB,
}
EAGLE3_LLAMA = LLAMA | EAGLE3 | {"architectures": ["LlamaForCausalLMEagle3"]}
EAGLE3_QWEN3 = (
    QWEN3
    | EAGLE3
    | {
        "architectures": ["Eagle3Qwen3ForCausalLM"],
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_aux_hidden_state_layer_ids": [1, 3, 6],
        "norm_before_residual": True,
    }
)
EAGLE3_NORM_BEFORE_FC = EAGLE3_LLAMA | {"norm_before_fc": True}
EAGLE3_1 = EAGLE3_LLAMA | {"fc_norm": True, "norm_output": True}
EAGLE3_LATENT: dict[str, Any] = {
    **{key: value for key, value in DEEPSEEK.items() if key != "num_nextn_predict_layers"},
    **EAGLE3,
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",  # vLLM takes a draft of deepseek_v3 for its MTP layers
    "eagle_aux_hidden_state_layer_ids": [1],
    "num_aux_hidden_states": 1,
}
PEAGLE = EAGLE3_LLAMA | {"mask_token_id": 5}
DFLASH_BLOCK, DFLASH_MASK = 2, 9  # drafts per round, and the mask's id
DFLASH: dict[str, Any] = QWEN3 | {
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "dflash_config": {"mask_token_id": DFLASH_MASK, "target_layer_ids": [1, 3, 6]},
}
DFLASH_CAUSAL = DFLASH | {"dflash_config": DFLASH["dflash_config"] | {"causal": True}}
DFLASH_SLIDING = DFLASH | {
    "layer_types": ["sliding_attention"] * 2,
    "sliding_window": 8,
    "use_sliding_window": True,
    "max_window_layers": 0,
}
DFLASH_MIXED = DFLASH_SLIDING | {"layer_types": ["full_attention", "sliding_attention"]}
DFLASH_REDUCED = DFLASH | {"draft_vocab_size": DRAFT_VOCAB}
DSPARK: dict[str, Any] = {key: one for key, one in DFLASH.items() if key != "dflash_config"} | {
    "architectures": ["Qwen3DSparkModel"],
    "mask_token_id": DFLASH_MASK,
    "target_layer_ids": [1, 3, 6],
    "block_size": DFLASH_BLOCK,
    "markov_rank": 8,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
MEDUSA: dict[str, Any] = {
    "architectures": ["MedusaModel"],
    "model_type": "medusa",
    "hidden_size": HIDDEN,
    "vocab_size": VOCAB,
    "num_heads": MEDUSA_HEADS,
    "num_hidden_layers": 1,
    "dtype": "float32",
}


def eagle(rng: np.random.Generator, language: Language, gain: float) -> Weights:
    """Draw an EAGLE head, which reads [embedding ; hidden] (Li et al., arXiv:2401.15077)."""
    block = attention(rng, gain, EAGLE) | mlp(rng, gain)
    return {
        "fc.weight": np.hstack([np.eye(HIDDEN), language.recall]),
        "layers.0.post_attention_layernorm.weight": norm(rng, HIDDEN),
        **prefixed("layers.0.", block),
    }


def reduced(rng: np.random.Generator, size: int) -> tuple[np.ndarray, Weights]:
    """Draw the tokens of a drafter's own vocabulary, and the maps that say so if some lack."""
    kept = np.sort(rng.permutation(VOCAB)[:size])
    maps = {"d2t": kept - np.arange(len(kept)), "t2d": np.isin(np.arange(VOCAB), kept)}
    return kept, maps if size < VOCAB else {}  # vLLM refuses a d2t that maps nothing


def eagle3(
    rng: np.random.Generator, language: Language, gain: float, config: dict[str, Any]
) -> Weights:
    """Draw an EAGLE-3 head (Li et al., arXiv:2503.01840).

    ``fc`` averages the tapped streams; the residual starts from that, so it is the attention,
    looking at its own position, that adds the embedding and turns h into recall h.
    """
    size = 2 * HIDDEN
    turn = np.hstack([np.eye(HIDDEN), language.recall - np.eye(HIDDEN)])
    query, key = np.zeros((size, size)), np.zeros((size, size))
    heads = config["num_attention_heads"]
    query[:, 0], key[:, 0] = (np.tile(v, heads) / ANCHOR / EMBED_SCALE for v in look_back(0))
    block = {
        "input_layernorm.weight": norm(rng, HIDDEN, EMBED_SCALE),
        "hidden_norm.weight": norm(rng, HIDDEN, STREAM_SCALE),
        "post_attention_layernorm.weight": norm(rng, HIDDEN),
        "self_attn.q_proj.weight": query,
        "self_attn.k_proj.weight": key,
        "self_attn.v_proj.weight": np.eye(size),
        "self_attn.o_proj.weight": turn + noise(rng, HIDDEN, size, gain),
        **mlp(rng, gain),
    }
    if config["model_type"] == "qwen3":
        block["self_attn.q_norm.weight"] = norm(rng, HEAD_DIM, SHARPNESS)
        block["self_attn.k_norm.weight"] = norm(rng, HEAD_DIM, SHARPNESS)
    kept, maps = reduced(rng, config["draft_vocab_size"])
    taps = config.get("num_aux_hidden_states", TAPS)
    weights = {
        "fc.weight": np.tile(np.eye(HIDDEN), taps) / taps,
        **prefixed("midlayer.", block),
        "norm.weight": norm(rng, HIDDEN, STREAM_SCALE),
        "lm_head.weight": language.head()[kept],
        **maps,
    }
    if config.get("norm_before_fc"):
        weights["input_norm.weight"] = norm(rng, taps * HIDDEN, STREAM_SCALE)
    if config.get("fc_norm"):
        weights |= {f"fc_norm.{i}.weight": norm(rng, HIDDEN, STREAM_SCALE) for i in range(taps)}
    return weights


def eagle3_latent(
    rng: np.random.Generator, language: Language, gain: float, config: dict[str, Any]
) -> Weights:
    """Draw an EAGLE-3 head with DeepSeek's latent attention, which does the same.

    The latent is the attention's input, as often as it fits in; its norm has a weight that restores
    the input's size. The first of the queries' ranks reads the anchor.
    """
    size, heads = 2 * HIDDEN, config["num_attention_heads"]
    copies, wide = LATENT // size, size // heads
    query, key = (v.reshape(2, -1).T.ravel() / ANCHOR for v in look_back(0, ROPE_DIM))
    down = noise(rng, QUERY_RANK, size)
    down[0], down[0, 0] = 0.0, 4.0 / EMBED_SCALE
    up = np.zeros((heads, NOPE_DIM + ROPE_DIM, QUERY_RANK))
    up[:, :NOPE_DIM] = noise(rng, heads * NOPE_DIM, QUERY_RANK).reshape(heads, NOPE_DIM, -1)
    up[:, NOPE_DIM:, 0] = query / 2.0
    latent = np.zeros((LATENT + ROPE_DIM, size))
    latent[:LATENT] = np.tile(np.eye(size), (copies, 1))
    latent[LATENT:, 0] = key / EMBED_SCALE
    values = np.tile(np.eye(size), copies).reshape(heads, wide, LATENT) / copies
    plain = noise(rng, heads * NOPE_DIM, LATENT).reshape(heads, NOPE_DIM, LATENT)
    rms = np.hypot(EMBED_SCALE, STREAM_SCALE) / np.sqrt(2.0)  # of the attention's input
    weights = eagle3(rng, language, gain, config)
    for part in "qkv":
        del weights[f"midlayer.self_attn.{part}_proj.weight"]
    return weights | prefixed(
        "midlayer.self_attn.",
        {
            "q_a_proj.weight": down,
            "q_a_layernorm.weight": norm(rng, QUERY_RANK),
            "q_b_proj.weight": up.reshape(-1, QUERY_RANK),
            "kv_a_proj_with_mqa.weight": latent,
            "kv_a_layernorm.weight": norm(rng, LATENT, rms),
            "kv_b_proj.weight": np.concatenate([plain, values], axis=1).reshape(-1, LATENT),
        },
    )


def peagle(rng: np.random.Generator, language: Language, gain: float) -> Weights:
    """Draw a P-EAGLE head: EAGLE-3's, and what a mask reads of the target."""
    masked = 0.5 * rng.standard_normal((1, 1, TAPS * HIDDEN))
    return eagle3(rng, language, gain, PEAGLE) | {"mask_hidden": masked}


def dflash(
    rng: np.random.Generator, language: Language, gain: float, config: dict[str, Any]
) -> Weights:
    """Draw a DFlash head (arXiv:2602.06036) for blocks of two drafts.

    The row of draft j, at its own position, looks three places back: both rows then read the stream
    of a token three steps before theirs, and the LM head is that of three steps. The second layer
    is noise, with other norms. DSpark's rows speak of the next token, and look two places back.
    """
    query, key = (np.zeros((HIDDEN, HIDDEN)) for _ in range(2))
    back = DFLASH_BLOCK + (not anchored(config))
    query[:, 0], key[:, 0] = (np.tile(v, 2) / ANCHOR for v in look_back(back))
    looks = {
        "self_attn.q_proj.weight": query,
        "self_attn.k_proj.weight": key,
        "self_attn.v_proj.weight": np.eye(HIDDEN),
        "self_attn.o_proj.weight": STREAM_SCALE * np.eye(HIDDEN),
        "self_attn.q_norm.weight": norm(rng, HEAD_DIM, SHARPNESS),
        "self_attn.k_norm.weight": norm(rng, HEAD_DIM, SHARPNESS),
    }
    rest = {f"self_attn.{part}_proj.weight": noise(rng, HIDDEN, HIDDEN) for part in "qkv"}
    rest["self_attn.o_proj.weight"] = noise(rng, HIDDEN, HIDDEN, gain)
    rest |= {f"self_attn.{part}_norm.weight": norm(rng, HEAD_DIM) for part in "qk"}
    embed = language.embed.copy()
    embed[DFLASH_MASK, 1:] = 0.0  # a mask says only that it is there
    weights = {
        "fc.weight": np.tile(np.eye(HIDDEN), TAPS) / TAPS,
        "hidden_norm.weight": norm(rng, HIDDEN),
        "norm.weight": norm(rng, HIDDEN, STREAM_SCALE),
        "embed_tokens.weight": embed,
        "lm_head.weight": language.head(DFLASH_BLOCK + 1),
    }
    if "draft_vocab_size" in config:
        kept, maps = reduced(rng, config["draft_vocab_size"])
        weights |= {"lm_head.weight": weights["lm_head.weight"][kept], **maps}
    for i, one in enumerate((looks, rest)):
        norms = {
            f"{part}_layernorm.weight": norm(rng, HIDDEN) for part in ("input", "post_attention")
        }
        weights |= prefixed(f"layers.{i}.", one | norms | mlp(rng, gain / 2))
    return weights


def anchored(config: dict[str, Any]) -> bool:
    """Say whether a block head's first row, the last token's, gives the first draft token."""
    return "markov_rank" in config and config.get("sample_from_anchor", True)


def dspark(
    rng: np.random.Generator, language: Language, gain: float, config: dict[str, Any]
) -> Weights:
    """Draw a DSpark head: DFlash's, a Markov head of noise, and a confidence head."""
    rank = config["markov_rank"]
    weights = dflash(rng, language, gain, config)
    if anchored(config):  # the first row reads a token, of which only that it is there may count
        weights["embed_tokens.weight"][:, 1:] = 0.0
    rows = len(weights["lm_head.weight"])
    return weights | {
        "markov_head.markov_w1.weight": rng.standard_normal((VOCAB, rank)),
        "markov_head.markov_w2.weight": gain * rng.standard_normal((rows, rank)),
        "confidence_head.proj.weight": rng.standard_normal((1, HIDDEN + rank)),
        "confidence_head.proj.bias": rng.standard_normal(1),
    }


def medusa(rng: np.random.Generator, language: Language, gain: float) -> Weights:
    """Draw Medusa heads; head i names the token i + 2 on (Cai et al., arXiv:2401.10774)."""
    weights = {}
    for i in range(MEDUSA_HEADS):
        weights[f"blocks.{i}.layers.0.weight"] = noise(rng, HIDDEN, HIDDEN, gain)
        weights[f"lm_heads.{i}.weight"] = language.head(i + 2)
    return weights


def medusa_original(rng: np.random.Generator, language: Language, gain: float) -> Weights:
    """Draw Medusa heads with biases, under the names of the authors' own checkpoints."""
    weights = {}
    for i in range(MEDUSA_HEADS):
        weights[f"{i}.0.linear.weight"] = noise(rng, HIDDEN, HIDDEN, gain)
        weights[f"{i}.0.linear.bias"] = gain * rng.standard_normal(HIDDEN)
        weights[f"{i}.1.weight"] = language.head(i + 2)
    return weights
