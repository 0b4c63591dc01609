"""Arrays from JAX to PyTorch and back, by DLPack: no copy on a CPU."""

from typing import Any

import jax
import jax.numpy as jnp
import torch


def to_torch(value: Any, device: str = "cpu") -> torch.Tensor:
    """Return a JAX array as a tensor on a device; on the CPU they share their memory."""
    if not isinstance(value, torch.Tensor):
        value = torch.from_dlpack(jax.numpy.asarray(value))
    return value if value.device.type == torch.device(device).type else value.to(device)


def to_jax(value: torch.Tensor) -> jax.Array:
    """Return a tensor as a JAX array on the host."""
    return jnp.from_dlpack(value.detach().cpu().contiguous())


def weights_to_torch(params: Any, device: str = "cpu") -> Any:
    """Return a tree of weights as tensors."""
    return jax.tree.map(lambda leaf: to_torch(leaf, device), params)
