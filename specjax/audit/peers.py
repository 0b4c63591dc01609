"""Other engines' samplers, each as a function from a batch to the tokens that it emits.

The code is that of the installed packages; vLLM runs in a process of its own instead (``oracle``).
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.audit.batches import ROWS, Batch, K, V, flat
from specjax.audit.source_loader import NotInstalled, load_source

# (batch, seed) -> the batch with the noise that was used, and the emitted tokens of every row
Replay = Callable[[Batch, int], tuple[Batch, list[list[int]]]]
ASCEND_HOW = (
    "pip install 'specjax[bridge]' for torch, then "
    "pip install --no-deps --only-binary :all: vllm-ascend"
)
TPU_HOW = "pip install --no-deps tpu-inference"
PLACES = ROWS * K  # drafted tokens of the largest batch


class Unpinned:
    """torch without pinned memory, which needs an accelerator."""

    def __init__(self, torch: Any):
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._torch, name)
        if name in ("arange", "full", "ones", "tensor"):
            return lambda *args, pin_memory=False, **options: found(*args, **options)
        return found


def vllm_ascend(*, block: bool = False) -> Replay:
    """Return vllm-ascend's ``rejection_sample``, in its PyTorch fallback.

    Only its random numbers are replaced. It runs on the CPU; an NPU runs other kernels. Raises
    NotInstalled.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise NotInstalled(f"torch is not installed: {ASCEND_HOW}") from None
    noise: dict[str, Any] = {}
    wanted = SimpleNamespace(
        enable_block_verify=block,
        enable_entropy_verify=False,
        posterior_threshold=0.95,
        posterior_alpha=0.4,
    )
    config = SimpleNamespace(rejection_sampler_config=wanted, enable_reduce_sample=False)
    quiet = {f"{level}_once": lambda *words: None for level in ("debug", "info", "warning")}
    its = load_source(
        "vllm_ascend",
        "sample/rejection_sampler.py",
        ASCEND_HOW,
        torch=Unpinned(torch),
        HAS_TRITON=False,
        PLACEHOLDER_TOKEN_ID=-1,
        GREEDY_TEMPERATURE=0,
        logger=SimpleNamespace(**quiet),
        get_ascend_config=lambda: config,
        generate_uniform_probs=lambda *args: noise["accept"],
    )
    for name in ("sample_recovered_tokens_pytorch", "sample_recovered_tokens_blockwise_pytorch"):
        its[name] = with_clocks(its[name], noise)

    def replay(batch: Batch, seed: int) -> tuple[Batch, list[list[int]]]:
        arrays = {name: torch.from_numpy(value) for name, value in flat(batch).items()}
        noise.update(arrays)
        greedy = arrays["greedy"]
        out = its["rejection_sample"](
            arrays["draft"],
            batch.counts.tolist(),
            int(batch.counts.max()),
            arrays["counts"].cumsum(0).to(torch.int32),
            arrays.get("probs"),
            arrays["target"],
            arrays["bonus"][:, None],
            SimpleNamespace(
                temperature=torch.where(greedy, 0.0, 1.0),
                all_greedy=bool(greedy.all()),
                all_random=not bool(greedy.any()),
                generators={},
            ),
        )
        return batch, [[token for token in row if token >= 0] for row in out.tolist()]

    return replay


def with_clocks(shipped: Callable[..., Any], noise: dict[str, Any]) -> Callable[..., Any]:
    """Return a function with its sixth argument, exponential noise, replaced by ours."""

    @functools.wraps(shipped)
    def replaced(*args, **options):
        return shipped(*args[:5], noise["recover"], *args[6:], **options)

    return replaced


def tpu_inference() -> Replay:
    """Return tpu-inference's ``rejection_sample``, which is JAX.

    It draws its random numbers itself from key ``seed``; the batch that it returns contains them.
    Its rows are all greedy or none is. Raises NotInstalled.
    """
    file = "layers/jax/sample/rejection_sampler.py"
    its = load_source("tpu_inference", file, TPU_HOW, jax=jax, jnp=jnp, np=np)

    @functools.partial(jax.jit, static_argnums=5)
    def call(draft, counts, probs, target, bonus, sampling, key):
        return its["rejection_sample"](draft, counts, probs, target, bonus, sampling, key=key)

    def replay(batch: Batch, seed: int) -> tuple[Batch, list[list[int]]]:
        batch, key = with_noise_of(batch, seed), jax.random.key(seed)
        rows, number = len(batch.counts), int(batch.counts.sum())
        real = np.arange(batch.draft.shape[1])[None] < batch.counts[:, None]

        def laid_out(values: np.ndarray) -> jnp.ndarray:  # padded, so that shapes are always alike
            wide = np.zeros((PLACES, *(V for _ in values.shape[2:])), values.dtype)
            wide[(slice(number), *(slice(n) for n in values.shape[2:]))] = values[real]
            return jnp.asarray(wide)

        counts, bonus = np.zeros(ROWS + 1, np.int32), np.zeros(ROWS + 1, np.int32)
        counts[:rows], counts[-1], bonus[:rows] = batch.counts, PLACES - number, batch.bonus
        emitted = call(
            laid_out(batch.draft.astype(np.int32)),
            jnp.asarray(counts),
            None if batch.probs is None else laid_out(batch.probs),
            laid_out(batch.target),
            jnp.asarray(bonus),
            not batch.greedy.all(),
            key,
        )
        emitted, ends = np.asarray(emitted), batch.counts.cumsum()
        texts = [
            [*emitted[end - count : end], emitted[PLACES + row]]
            for row, (count, end) in enumerate(zip(batch.counts, ends, strict=True))
        ]
        return batch, [[int(token) for token in text if token >= 0] for text in texts]

    return replay


def with_noise_of(batch: Batch, seed: int) -> Batch:
    """Return a batch with the noise that tpu-inference draws from a key."""
    rows, depth, size = batch.target.shape
    uniforms, clocks = draw(jax.random.key(seed))
    real = np.arange(depth)[None] < batch.counts[:, None]
    accept, recover = np.ones((rows, depth), np.float32), np.ones((rows, depth, size), np.float32)
    number = int(batch.counts.sum())
    accept[real] = np.asarray(uniforms)[:number]
    recover[real] = np.asarray(clocks)[:number, :size]
    greedy = np.full(rows, batch.greedy.all())
    return batch._replace(accept=accept, recover=recover, greedy=greedy)


@jax.jit
def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the uniforms for acceptance and the exponentials for recovered tokens."""
    accept_key, recover_key = jax.random.split(key)
    uniforms = jax.random.uniform(accept_key, (PLACES,))
    return uniforms, jax.random.exponential(recover_key, (PLACES, V))
