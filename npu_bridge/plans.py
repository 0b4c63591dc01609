"""Plans: which fused kernels a program may use."""

from npu_bridge import ascend, torch_kernels
from npu_bridge.torch_kernels import FusedKernel

PLANS: dict[str, dict[str, FusedKernel]] = {
    "decomposed": {},  # primitives only
    "torch": torch_kernels.TORCH,  # PyTorch's own kernels
    "npu": ascend.DENSE,  # Ascend's, rows of the cache side by side
    "npu-paged": ascend.PAGED,  # Ascend's, blocks of 128 slots
}
