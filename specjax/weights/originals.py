"""Drafting heads in their authors' formats, converted to those that vLLM loads.

Medusa's ``medusa_lm_head.pt`` holds an ``nn.ModuleList`` of ``nn.Sequential``s beside a config
with two numbers. EAGLE's ``pytorch_model.bin`` has vLLM's names already, but may have a bias of
``fc``, which vLLM's format lacks.
"""

from collections.abc import Mapping
from typing import Any

from specjax.weights.names import MEDUSA, head_name
from specjax.weights.safetensors_file import Entry

FC_BIAS = "fc.bias"


def is_medusa(names: set[str]) -> bool:
    """Return whether these are the tensor names of Medusa's authors."""
    return bool(names) and all(MEDUSA.fullmatch(name) for name in names)


def translate(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a head's tensors by vLLM's names; those of other checkpoints as they are.

    Raises ValueError for an EAGLE head with a bias of ``fc`` that is not zero.
    """
    if is_medusa(set(state)):
        return {str(head_name("medusa", 0, name)): value for name, value in state.items()}
    if FC_BIAS not in state or "fc.weight" not in state:
        return dict(state)
    if bool(state[FC_BIAS].any()):
        raise ValueError(
            f"{FC_BIAS} is not zero, and vLLM's format of EAGLE heads has no place for it: "
            "use a head that was trained without (bias false)"
        )
    return {name: value for name, value in state.items() if name != FC_BIAS}


def complete(config: Mapping[str, Any], tensors: Mapping[str, Entry]) -> dict[str, Any]:
    """Return a Medusa config.json with all fields that vLLM needs; any other config as it is."""
    if "blocks.0.layers.0.weight" not in tensors or "lm_heads.0.weight" not in tensors:
        return dict(config)
    vocab_size, hidden_size = tensors["lm_heads.0.weight"].shape
    return {
        **config,
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        "num_heads": sum(name.startswith("lm_heads.") for name in tensors),
        "num_hidden_layers": sum(
            name.startswith("blocks.0.") and name.endswith(".weight") for name in tensors
        ),
        "medusa_fc_bias": "blocks.0.layers.0.bias" in tensors,
    }
