"""The embedding of a block head's mask, in a file of its own: ``mask_embedding.pt``.

Heads such as XiaomiMiMo/MiMo-V2.5-Pro-FP4-DFlash have it, where others take the vocabulary's
embedding of ``mask_token_id``.
"""

import math
from pathlib import Path

import numpy as np

from specjax.models.config import BlockConfig
from specjax.weights.pickled import load_pickle

FILE, MASK = "mask_embedding.pt", "mask_embedding"  # and the name of the weight


def has_mask_embedding(folder: Path) -> bool:
    """Return whether a head's folder has the file."""
    return (folder / FILE).is_file()


def read_mask_embedding(folder: Path, config: BlockConfig) -> np.ndarray:
    """Return the embedding [H], float32.

    Raises:
        ImportError: torch is not installed (``pip install 'specjax[bridge]'``).
        ValueError: the file holds something else, or is of another mask or size.
    """
    stored = load_pickle(folder / FILE)
    if isinstance(stored, dict):
        token = stored.get("mask_token_id", config.mask_token_id)
        if token != config.mask_token_id:
            raise ValueError(
                f"{folder / FILE} is of mask_token_id {token}, config.json of "
                f"{config.mask_token_id}: take both from one head."
            )
        stored = stored.get("embedding")
    size, shape = config.block.hidden_size, getattr(stored, "shape", None)
    if stored is None or shape is None or math.prod(shape) != size:
        raise ValueError(f"{folder / FILE} needs an embedding of {size} numbers, got {shape}.")
    return stored.float().numpy().reshape(-1)
