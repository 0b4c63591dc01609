"""The options of method "extract_hidden_states"."""

import warnings
from collections.abc import Mapping
from typing import Any

METHOD, IDS = "extract_hidden_states", "eagle_aux_hidden_state_layer_ids"
EXAMPLE = f'{{"hf_config": {{"{IDS}": [2, 18, 34]}}}}'


def read_layers(draft_model_config: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Return the layers whose hidden states are to be saved, ascending as vLLM saves them.

    Raises:
        ValueError: there are none, one comes twice or is not a layer's number, or the mapping
            has other keys.
    """
    facts = (draft_model_config or {}).get("hf_config")
    ids = facts.get(IDS) if isinstance(facts, Mapping) else None
    if not ids:
        raise ValueError(
            f"{IDS} must be set in the draft model config for {METHOD} method, such as "
            f"draft_model_config={EXAMPLE}, got {draft_model_config!r}."
        )
    if set(draft_model_config or {}) != {"hf_config"} or set(facts or {}) != {IDS}:
        raise ValueError(f"draft_model_config must be like {EXAMPLE}, got {draft_model_config!r}.")
    numbers = isinstance(ids, list | tuple) and all(type(i) is int and i >= 0 for i in ids)
    if not numbers or len(set(ids)) < len(ids):
        raise ValueError(f"{IDS} must be different layers, each a number from 0 on, got {ids!r}.")
    layers = tuple(sorted(ids))
    if layers != tuple(ids):
        warnings.warn(f"{IDS}={list(ids)}: saved in the order {list(layers)}.", stacklevel=7)
    return layers


def check_layers(layers: tuple[int, ...], num_layers: int) -> None:
    """Raise ValueError unless the target has every one of the layers."""
    if layers and layers[-1] > num_layers:
        raise ValueError(
            f"{IDS} has {layers[-1]}, the target has {num_layers} layers: use 0 (the embeddings) "
            f"to {num_layers} (before the final norm)."
        )


def check_options(
    num_speculative_tokens: int, draft_sample_method: str, rejection_sample_method: str
) -> None:
    """Raise ValueError for options that only a method that drafts can have."""
    if num_speculative_tokens != 1:
        raise ValueError(
            f"{METHOD} requires num_speculative_tokens to be 1, got {num_speculative_tokens}."
        )
    if draft_sample_method != "greedy":
        raise ValueError(
            f"{METHOD} only supports draft_sample_method='greedy', got {draft_sample_method!r}."
        )
    if rejection_sample_method != "standard":
        raise ValueError(
            f"{METHOD} drafts nothing that rejection_sample_method="
            f"{rejection_sample_method!r} could verify: remove it."
        )
