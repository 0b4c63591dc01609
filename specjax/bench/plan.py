"""Model shapes, methods and settings that the benchmarks share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specjax.bundled import HEADS
from specjax.models.config import HEAD_KINDS, ModelConfig, Rope

QWEN3_100M = ModelConfig(
    vocab_size=16384,
    hidden_size=768,
    intermediate_size=2048,
    num_layers=12,
    num_heads=12,
    num_kv_heads=4,
    head_dim=64,
    max_position_embeddings=1024,
    qk_norm=True,
    tie_word_embeddings=True,
)
QWEN3_600M = ModelConfig(  # Qwen3-0.6B's shape, with room for fewer positions
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    max_position_embeddings=4096,
    rope=Rope(theta=1e6),
    qk_norm=True,
    tie_word_embeddings=True,
)
QWEN3_8B = ModelConfig(  # Qwen3-8B's shape, with room for fewer positions
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=12288,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position_embeddings=4096,
    rope=Rope(theta=1e6),
    qk_norm=True,
    dtype="bfloat16",
    joined=True,
)

# K = 3: a round over 4 tokens is one of the shapes a CPU is good at (``ops.linear``). n-gram is as
# fast with K = 7 in a batch of one, but not in a larger one; later tokens of the draft model are
# seldom right
DEPTH = 3
NGRAM: dict[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": DEPTH,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 4,
}
SUFFIX: dict[str, Any] = {
    "method": "suffix",
    "num_speculative_tokens": DEPTH,
    "suffix_decoding_max_spec_offset": float(DEPTH),  # a round of 4 nodes costs the same if not all
    "suffix_decoding_max_cached_requests": 0,  # prompts repeat: none may draft from its answers
}
DRAFT_MODEL: dict[str, Any] = {"method": "draft_model", "num_speculative_tokens": DEPTH}
# Verifying 5 to 8 tokens costs the same, more than 4: that pays where later tokens are often right
# and drafting is cheap. mtp gained 1.57x with K = 3, 1.54x with 5 and 1.67x with 7 in one run
DEEPER = {"mtp": 7}
LEARNED: dict[str, dict[str, Any]] = {  # the heads that ship with the bundled target
    name: {
        "method": name,
        "model": f"bundled:{name}",
        "num_speculative_tokens": DEEPER.get(name, DEPTH),
    }
    for name in HEADS
}
PAUSE = 0.3  # seconds between turns of servers: the other's threads may still be spinning


def trained_alike(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the configs of the heads that ``specjax train heads`` has trained, all with one K.

    Raises:
        ValueError: there are none.
    """
    found = [kind for kind in HEAD_KINDS if (folder / kind / "model" / "config.json").is_file()]
    if not found:
        raise ValueError(f"{folder} holds no trained heads: make some with `specjax train heads`")
    at_once = {"method": "eagle3", "parallel_drafting": True}
    return {
        kind: {
            **(at_once if kind == "peagle" else {"method": kind}),
            "model": str(folder / kind / "model"),
            "num_speculative_tokens": DEPTH,
        }
        for kind in found
    }


def with_depth(config: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return a method's config with K = ``depth``."""
    deeper = {**config, "num_speculative_tokens": depth}
    if config["method"] == "suffix":
        deeper["suffix_decoding_max_spec_offset"] = float(depth)
    return deeper


class Setting(NamedTuple):
    """The shape and sizes of a benchmark of steps."""

    config: ModelConfig = QWEN3_100M
    capacity: int = 1024
    context: int = 200
    window: int = 256
    batches: tuple[int, ...] = (1, 4, 8)
    nodes: tuple[int, ...] = tuple(range(1, 10))
    goal: float = 1.45  # of T(4) / T(1), batch 1
