"""Replay SGLang's verification kernel on our probabilities and noise.

It draws the last token by its cumulative distribution, with one uniform, where our kernels run an
exponential race: so acceptance is compared with our kernels', and that token with the first whose
cumulative share of what our rule leaves exceeds the uniform.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from specjax.audit import batches
from specjax.audit.philox import Noise
from specjax.audit.source_loader import find_source
from specjax.verify.block import accept_block, prefix_probs
from specjax.verify.rejection import reject

FILE = "kernels/ops/speculative/reject_sampling.py"
HOW = "pip install --no-deps sglang"


def replay_sglang(
    ask: Callable[[dict[str, Any]], dict[str, Any]], num_batches: int, *, block: bool
) -> int:
    """Return on how many batches SGLang's kernel emits our rule's tokens. Raises NotInstalled."""
    source, made, seed = find_source("sglang", FILE, HOW), [], 0
    while len(made) < num_batches:
        one = batches.make(seed)
        if one.probs is not None:
            made.append(whole(one, seed))
        seed += 1
    arrays: dict[str, Any] = {
        f"{i}_{name}": value for i, one in enumerate(made) for name, value in layout(*one).items()
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batches.npz"
        np.savez(path, **arrays)
        job = {"kind": "sglang", "source": str(source), "arrays": str(path), "block": block}
        answer = ask({**job, "num_batches": num_batches})
    return sum(
        expected(*one, block=block) == tokens
        for one, tokens in zip(made, answer["tokens"], strict=True)
    )


def whole(batch: batches.Batch, seed: int) -> tuple[batches.Batch, np.ndarray]:
    """Return a batch whose rows all draft and sample, and the uniforms of their last tokens."""
    rows, depth = batch.draft.shape
    batch = batch._replace(counts=np.full(rows, depth), greedy=np.zeros(rows, bool))
    return batch, Noise(seed + 10**6).uniform(rows).astype(np.float32)


def layout(batch: batches.Batch, last: np.ndarray) -> dict[str, np.ndarray]:
    """Return a batch as the oracle's job has it; the token after the draft is sure, as ours is."""
    size = batch.target.shape[-1]
    bonus = np.eye(size, dtype=np.float32)[batch.bonus][:, None]
    assert batch.probs is not None
    return {
        "draft": batch.draft.astype(np.int64),
        "target": np.concatenate([batch.target, bonus], axis=1),
        "probs": batch.probs,
        "accept": batch.accept.astype(np.float32),
        "last": last,
    }


def expected(batch: batches.Batch, last: np.ndarray, *, block: bool) -> list[list[int]]:
    """Return the tokens that our rule emits, the last one by its cumulative distribution."""
    noise, draft, target = batches.pad(batch)
    verdict = jax.jit(accept_block if block else reject, static_argnums=3)(
        noise, draft, target, batches.K
    )
    kept = np.asarray(jax.jit(prefix_probs)(draft, target)[0]) if block else None
    given, texts = layout(batch, last), []
    for row, count in enumerate(np.asarray(verdict.num_accepted)[: len(last)].tolist()):
        left = given["target"][row, count]
        if count < batch.draft.shape[1]:
            scale = np.float32(1) if kept is None else kept[row, count]
            left = np.maximum(scale * left - given["probs"][row, count], 0)
        below = np.cumsum(left, dtype=np.float32) > last[row] * left.sum(dtype=np.float32)
        token = int(below.argmax()) if below.any() else len(left) - 1
        texts.append([*batch.draft[row, :count].tolist(), token])
    return texts
