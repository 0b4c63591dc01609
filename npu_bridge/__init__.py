"""The same program on Ascend: specjax's forward pass and rounds, lowered to torch and torch_npu.

Schema-, Meta- and reference-checked against torch_npu 2.13.0; not executed on hardware. The
engine runs on it, and ``npu_bridge.certificate``, which needs the engine, is imported by itself.
"""

from npu_bridge import lowering_targets
from npu_bridge.executor import Executor
from npu_bridge.lower import Program, lower
from npu_bridge.rules import Refused
from npu_bridge.runtime import NpuUnavailable, open_device

__all__ = [
    "Executor",
    "NpuUnavailable",
    "Program",
    "Refused",
    "lower",
    "lowering_targets",
    "open_device",
]
