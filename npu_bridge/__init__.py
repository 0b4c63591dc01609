"""The same program on Ascend: specjax's forward pass and rounds, lowered to torch and torch_npu.

Schema-, Meta- and reference-checked against torch_npu 2.13.0; not executed on hardware.
"""

from npu_bridge import parts
from npu_bridge.certificate import certify, page
from npu_bridge.executor import Executor
from npu_bridge.lower import Program, lower
from npu_bridge.rules import Refused
from npu_bridge.runtime import NpuUnavailable, open_device

__all__ = [
    "Executor", "NpuUnavailable", "Program", "Refused", "certify", "lower", "open_device", "page",
    "parts",
]  # fmt: skip
