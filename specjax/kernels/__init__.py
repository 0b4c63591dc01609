"""Machine code for the CPU, where XLA's own is slow: written as LLVM IR, compiled on first use.

``linear`` is the product with a stored matrix, ``attention`` looks at a cache. Both read weights
and caches in the type they are stored in, and compute one output at a time, whatever stands beside
it: a row's result has the same bits in every batch, window and draft.
"""

from specjax.kernels.attention import attention
from specjax.kernels.linear import linear
from specjax.kernels.norm import rms_norm

__all__ = ["attention", "linear", "rms_norm"]
