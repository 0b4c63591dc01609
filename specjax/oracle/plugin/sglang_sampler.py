"""SGLang's verification kernel by itself: a Triton file that needs nothing else of SGLang."""

import importlib.util

import numpy as np


def sglang(job: dict) -> dict:
    """Return what SGLang's ``chain_speculative_sampling_triton`` emits with given noise.

    Job: ``source``, the path of its ``reject_sampling.py``; ``arrays``, a file with, for batch i,
    ``{i}_draft`` [R, K], ``{i}_target`` [R, K + 1, V] and ``{i}_probs`` [R, K, V] probabilities,
    ``{i}_accept`` [R, K] uniforms and ``{i}_last`` [R], the uniform of the last token;
    ``num_batches``; optional ``block``, its block verification. Answer: ``tokens``, per batch, per
    request.
    """
    import v2_runner

    v2_runner.prepare()
    import torch

    spec = importlib.util.spec_from_file_location("reject_sampling", job["source"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arrays, answers = np.load(job["arrays"]), []
    for i in range(job["num_batches"]):
        draft, target, probs, accept, last = (
            torch.from_numpy(arrays[f"{i}_{name}"])
            for name in ("draft", "target", "probs", "accept", "last")
        )
        rows, depth = draft.shape
        root = torch.zeros(rows, 1, dtype=torch.int64)
        index = torch.arange(rows * (depth + 1)).view(rows, depth + 1)
        emitted = torch.zeros(rows * (depth + 1), dtype=torch.int64)
        path = torch.full_like(index, -1)
        count = torch.zeros(rows, dtype=torch.int64)
        module.chain_speculative_sampling_triton(
            emitted,
            path,
            count,
            torch.cat([root, draft], dim=1),
            index,
            None,
            None,
            torch.cat([accept, torch.zeros(rows, 1)], dim=1),
            last,
            target,
            probs,
            1.0,
            1.0,
            True,
            block_verification=job.get("block", False),
        )
        answers.append([
            emitted[path[row, : count[row] + 1]].tolist() for row in range(rows)
        ])  # fmt: skip
    return {"tokens": answers}
