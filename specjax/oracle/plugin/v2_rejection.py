"""The V2 runner's ``rejection_sample`` with given noise: its kernels take their numbers from here.

Triton's interpreter runs kernels as Python, so that the two functions that draw can be replaced by
ones that look numbers up: ``tl_rand32``, a uniform per draft token, and
``_seeded_resample_argmax``, which compares log weights plus Gumbel noise.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


def rejection_sample(arrays: Mapping[str, Any], rule: str, rates: list[float]) -> list[list[int]]:
    """Return the tokens of each request of one batch, in the layout of the driver's "rejection".

    ``rule`` is "standard", "block" or "synthetic", the last with the conditional ``rates``.
    """
    import torch
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils as utils

    counts, vocab_size = arrays["counts"], arrays["target"].shape[-1]
    rows, depth = len(counts), int(counts.max())
    ends = np.concatenate([[0], np.cumsum(counts + 1)])  # a request has a row for its bonus token
    row = np.repeat(np.arange(rows), counts + 1)
    place = np.concatenate([np.arange(count + 1) for count in counts])
    real = place < counts[row]
    target = np.full((len(row), vocab_size), -np.inf, np.float32)
    target[real] = arrays["target"]
    target[ends[1:] - 1, arrays["bonus"]] = 0.0  # which the other runner gets as an argument
    draft = np.zeros(len(row) + 1, np.int64)  # of each row the last token, then its drafts
    draft[np.flatnonzero(real) + 1] = arrays["draft"]
    uniforms = np.full(len(row), 0.5, np.float32)
    uniforms[real] = arrays["accept"]
    give_noise(utils, uniforms, arrays["recover"][row])
    probs = None
    if "probs" in arrays:
        given = np.zeros((rows, depth, vocab_size), np.float32)
        given[row[real], place[real]] = arrays["probs"]
        with np.errstate(divide="ignore"):
            probs = torch.from_numpy(np.log(given))
    conditional = torch.tensor(rates[:depth]) if rule == "synthetic" else None
    which = torch.from_numpy(row.astype(np.int32))
    sampled, number = utils.rejection_sample(
        torch.from_numpy(target), probs, torch.from_numpy(draft[: len(row)]),
        torch.from_numpy(ends.astype(np.int32)), torch.arange(len(row)),
        torch.arange(rows, dtype=torch.int32), which, torch.from_numpy(place.astype(np.int32)),
        torch.from_numpy(np.where(arrays["greedy"], 0.0, 1.0).astype(np.float32)),
        torch.zeros(rows, dtype=torch.int64), depth, conditional,
        use_block_verification=rule == "block",
    )  # fmt: skip
    return [one[:count].tolist() for one, count in zip(sampled, number.tolist(), strict=True)]


def give_noise(utils: Any, uniforms: np.ndarray, exponentials: np.ndarray) -> None:
    """Replace what draws in the kernels' module: by logit row, [N] and [N, V]."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def tensor(value: Any, dtype: Any) -> Any:
        data = np.asarray([value], {tl.float32: np.float32, tl.int64: np.int64}[dtype])
        return tl.tensor(TensorHandle(data, dtype), dtype)

    def rand(seed: Any, position: Any, includes_zero: bool) -> Any:
        return tensor(uniforms[int(position.handle.data.item())], tl.float32)

    def resample(
        weights: Any, block: Any, mask: Any, logit: Any, *rest: Any, USE_FP64: bool
    ) -> tuple[Any, Any]:
        tokens, real = block.handle.data, mask.handle.data.astype(bool)
        noise = np.ones(len(tokens), np.float32)
        noise[real] = exponentials[int(logit.handle.data.item()), tokens[real]]
        scores = np.where(real, weights.handle.data - np.log(noise), -np.inf)
        best = int(np.argmax(scores))
        return tensor(scores[best], tl.float32), tensor(best, tl.int64)

    utils.tl_rand32, utils._seeded_resample_argmax = rand, resample
