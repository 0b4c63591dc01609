"""CPU kernels in LLVM IR, compiled on first use, for operations that XLA's CPU backend runs slowly.

``linear`` multiplies by a stored matrix, ``attention`` attends over a key-value cache. Both read
weights and caches in the dtype they are stored in, and compute every output in an order that does
not depend on the other rows: a row's result is bitwise the same in any batch, window and draft.
All compute in float32 and round once, to the dtype of their first argument; attention in bfloat16
rounds its weights too where the processor multiplies tiles (``amx_attention``).
"""

from specjax.kernels.attention import attention
from specjax.kernels.grouped import grouped_linear
from specjax.kernels.linear import linear
from specjax.kernels.norm import rms_norm
from specjax.kernels.rotate import rotate
from specjax.kernels.rows import take_rows
from specjax.kernels.swiglu import CLIP, CLIPPED_SLOPE, clipped_swiglu, geglu, swiglu

__all__ = [
    "CLIP",
    "CLIPPED_SLOPE",
    "attention",
    "clipped_swiglu",
    "geglu",
    "grouped_linear",
    "linear",
    "rms_norm",
    "rotate",
    "swiglu",
    "take_rows",
]
