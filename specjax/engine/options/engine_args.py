"""The options of an engine, under vLLM's names, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specjax.engine.options.speculative import SpeculativeConfig


@dataclass(frozen=True, kw_only=True)
class EngineArgs:
    """The arguments of ``LLM``, with the speculative config read; ``LLM`` describes them.

    Raises:
        ValueError: a number is out of range, or an option is not supported.
    """

    model: str | Path
    tokenizer: str | Path | None
    speculative_config: SpeculativeConfig | None
    dtype: str
    max_model_len: int | None
    max_num_seqs: int
    max_logprobs: int
    seed: int
    tensor_parallel_size: int
    enable_expert_parallel: bool
    device: str
    quantization: str | None
    kv_transfer_config: Mapping[str, Any] | str | None
    batch_invariant: bool | None

    def __post_init__(self):
        for name in ("max_num_seqs", "max_model_len"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
        if not isinstance(self.max_logprobs, int) or self.max_logprobs < -1:
            raise ValueError(
                f"max_logprobs must be an integer of at least -1, got {self.max_logprobs!r}."
            )
        if not isinstance(self.seed, int):
            raise ValueError(f"seed must be an integer, got {self.seed!r}.")
