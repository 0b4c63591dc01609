"""Which kernels a program may use."""

from npu_bridge import ascend, seams

PLANS = {
    "decomposed": {},  # primitives only
    "torch": seams.TORCH,  # PyTorch's own kernels
    "npu": ascend.DENSE,  # Ascend's, rows of the cache side by side
    "npu-paged": ascend.PAGED,  # Ascend's, blocks of 128 slots
}
