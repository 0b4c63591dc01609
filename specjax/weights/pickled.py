"""Read a file that PyTorch pickled, without running what is in it."""

import pickle
import re
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any


def import_torch() -> ModuleType:
    """Return torch. Raises ImportError that names the remedy if it is not installed."""
    try:
        import torch
    except ImportError:
        message = "reading pickled weights needs torch: pip install 'specjax[bridge]'"
        raise ImportError(message) from None
    return torch


def load_pickle(file: Path) -> Any:
    """Return what a file holds, tensors on the CPU.

    Raises:
        ImportError: torch is not installed.
        ValueError: it is damaged, or holds more than tensors.
    """
    torch = import_torch()
    try:  # files older than torch 1.6 are no zip and cannot be mapped
        mapped = zipfile.is_zipfile(file)
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:  # torch's own text advises to read it all the same
        asked = re.search(r"GLOBAL (\S+)", str(error))
        reason = "unpickling fails" if asked is None else f"it would run {asked[1]}"
        raise ValueError(
            f"{file} is damaged, or holds more than tensors: {reason}; ask its author for "
            "safetensors"
        ) from None
    except Exception as error:  # torch raises half a dozen kinds
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        message = f"{file} is damaged, or holds more than tensors: {reason}"
        raise ValueError(message) from None
