"""Conversion of arrays between JAX and PyTorch by DLPack, without a copy on a CPU."""

from typing import Any

import jax
import jax.numpy as jnp
import torch


def to_torch(value: Any, device: str = "cpu") -> torch.Tensor:
    """Return a JAX array as a tensor on a device; on the CPU they share memory."""
    if not isinstance(value, torch.Tensor):
        value = torch.from_dlpack(jnp.asarray(value))
    return value if value.device.type == torch.device(device).type else value.to(device)


def to_jax(value: torch.Tensor) -> jax.Array:
    """Return a tensor as a JAX array on the host."""
    if not value.numel():
        return jnp.zeros(tuple(value.shape), str(value.dtype).split(".")[1])
    return jnp.from_dlpack(value.detach().cpu().contiguous())
