"""The Ascend device: opening it, and captured graphs. The only file that imports torch_npu.

Nothing in this file below ``open_device`` has been executed: there was no device.
"""

import importlib.metadata
from collections.abc import Sequence
from typing import Any

import torch

ascend: Any = torch  # has ``npu`` once torch_npu is imported
DEVICES = {"torch-cpu": "cpu", "npu": "npu"}  # the names LLM takes, and torch's
REMEDY = (
    "it needs an Ascend NPU with CANN 9.1.0 and torch_npu 2.10.0.post4, 2.11.0 or 2.12.0 with the "
    "torch of that version (which CANN torch_npu 2.13.0 pairs with is not documented): "
    "pip install 'specjax[npu]'. To run the same program on this CPU, use device='torch-cpu'"
)


class NpuUnavailable(ValueError):
    """There is no Ascend device, or torch_npu is not installed."""


def open_device(device: str) -> str:
    """Return torch's name of a device; raises NpuUnavailable, and never falls back to another."""
    if device == "npu":
        try:
            import torch_npu  # noqa: F401 # pyright: ignore[reportMissingImports]
        except (ImportError, OSError) as error:
            raise NpuUnavailable(f"device='npu' cannot be used ({error}): {REMEDY}.") from None
        if not ascend.npu.is_available():
            raise NpuUnavailable(f"device='npu' cannot be used (no device was found): {REMEDY}.")
    return DEVICES[device]


def version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


class Captured:
    """A program captured as an NPUGraph: one per (rows, nodes), replayed on the same memory.

    Sizes follow the guides' capture sizes: n rows of K + 1 nodes are n (K + 1) queries. The
    lengths, host lists, are updated before every replay. Not executed on hardware.
    """

    def __init__(self, module: torch.nn.Module, operands: Sequence[Any], num_lengths: int):
        self.operands, self.num_lengths = list(operands), num_lengths
        module(*operands)  # compiles and allocates, outside of the capture
        ascend.npu.synchronize()
        self.graph = ascend.npu.NPUGraph()
        with ascend.npu.graph(self.graph, auto_dispatch_capture=True):
            self.results = module(*operands)

    def __call__(self, *operands: Any) -> Any:
        """Replay the graph, after copying operands that are other tensors, and the lengths."""
        tensors = len(operands) - self.num_lengths
        for mine, given in zip(self.operands[:tensors], operands[:tensors], strict=True):
            if mine.data_ptr() != given.data_ptr():
                mine.copy_(given)
        lists = operands[tensors:]
        if lists:
            self.graph.update([{"actual_seq_lengths_kv": one} for one in lists])
        self.graph.replay()
        return self.results
