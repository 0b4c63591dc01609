"""One round of vLLM's V2 sampler by itself: a draft token, its verification, a recovered token."""

import numpy as np

POSITION = 7  # of the last committed token, which keys the noise of the token after it


def draft_noise(job: dict) -> dict:
    """Return the first token that V2's own kernels emit for each of many requests.

    Every request drafts one token with ``gumbel_sample``, as ``DraftModelSpeculator`` does, and has
    it judged by ``rejection_sample``, both keyed by the request's seed and the same position.

    Job: ``target`` and ``draft`` [V], probabilities; ``num_requests``, whose seeds are 0, 1, ...;
    optional ``shared``: whether the draft is drawn without vLLM's salt, as before its pull request
    54282. Answer: ``drafts`` and ``tokens``, per request; ``accepted``, how many drafts were.
    """
    import v2_runner

    v2_runner.prepare()
    import torch
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    def logits(probs: list[float], rows: int) -> torch.Tensor:
        return torch.tensor(np.log(probs), dtype=torch.float32).repeat(rows, 1)

    number, size = job["num_requests"], len(job["target"])
    requests = torch.arange(number, dtype=torch.int32)
    seeds, ones = torch.arange(number, dtype=torch.int64), torch.ones(number)
    cached = torch.zeros(number, 1, size)
    drafts = gumbel_sample(
        logits(job["draft"], number),
        requests,
        ones,
        seeds,
        torch.full((number,), POSITION),
        apply_temperature=True,
        is_drafting=not job.get("shared", False),
        logits_cache=cached,
        logits_cache_col=torch.tensor(0),
    )
    given = torch.stack([torch.zeros_like(drafts), drafts], dim=1).flatten()  # after the last token
    emitted, count = rejection_sample(
        logits(job["target"], 2 * number),
        cached,
        given,
        2 * torch.arange(number + 1, dtype=torch.int32),
        torch.tensor([POSITION, POSITION + 1]).repeat(number),
        requests,
        requests.repeat_interleave(2),
        torch.tensor([0, 1], dtype=torch.int32).repeat(number),
        ones,
        seeds,
        1,
    )
    return {
        "drafts": drafts.tolist(),
        "tokens": emitted[:, 0].tolist(),
        "accepted": int((count - 1).sum()),
    }
