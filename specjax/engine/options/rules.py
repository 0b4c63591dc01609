"""The options of verification rules: vLLM's, those of older vLLM, and vllm-ascend's."""

import itertools
from collections.abc import Sequence

LOSSY = {  # rule -> how it departs from the target's distribution
    "synthetic": "drafts are accepted at given rates, whatever their tokens: measure with it",
    "typical": "drafts are accepted where the target finds them likely enough (Medusa)",
    "entropy": "drafts are accepted more easily where the target is unsure (vllm-ascend)",
}
RULES = ("standard", "block", *LOSSY)
POSTERIOR = {"typical": (0.09, 0.3), "entropy": (0.95, 0.4)}  # default threshold and alpha


def synthetic_rates(
    rule: str, rates: Sequence[float] | None, length: float | None, depth: int
) -> Sequence[float] | None:
    """Return the unconditional acceptance rates of "synthetic", from rates or a mean length.

    Raises:
        ValueError: neither or both are given, they are impossible, or the rule is another one.
    """
    if rule != "synthetic":
        if (rates, length) == (None, None):
            return None
        raise ValueError(
            "synthetic_acceptance_rates / synthetic_acceptance_length are only valid with "
            "rejection_sample_method='synthetic'."
        )
    if (rates is None) == (length is None):
        raise ValueError(
            "rejection_sample_method='synthetic' requires exactly one of "
            "synthetic_acceptance_rates or synthetic_acceptance_length."
        )
    if length is not None and not 1 <= length <= depth + 1:
        raise ValueError(f"synthetic_acceptance_length must be in [1, {depth + 1}], got {length}.")
    if length is not None:
        return from_length(length, depth)
    rates = rates or ()
    got = f", got {list(rates)}."
    if len(rates) != depth:
        raise ValueError(f"synthetic_acceptance_rates must have length {depth}{got}")
    if not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(f"synthetic_acceptance_rates entries must be in [0, 1]{got}")
    if any(later > rate for rate, later in itertools.pairwise(rates)):
        raise ValueError(f"synthetic_acceptance_rates must be non-increasing{got}")
    return rates


def from_length(length: float, depth: int) -> tuple[float, ...]:
    """Return unconditional rates of a mean acceptance length in [1, depth + 1].

    As in vLLM, those of least variance: the first positions 1, one in between, the rest 0.
    """
    return tuple(min(max(length - 1 - i, 0.0), 1.0) for i in range(depth))


def posterior(
    rule: str, threshold: float | None, alpha: float | None
) -> tuple[float | None, float | None]:
    """Return posterior_threshold and posterior_alpha, the rule's own where none is given.

    Raises:
        ValueError: the threshold is not in (0, 1], or the rule has no such options.
    """
    if rule not in POSTERIOR:
        if (threshold, alpha) == (None, None):
            return None, None
        raise ValueError(
            "posterior_threshold / posterior_alpha are only valid with "
            f"rejection_sample_method in {tuple(POSTERIOR)}."
        )
    if threshold is not None and not 0 < threshold <= 1:
        raise ValueError(f"posterior_threshold={threshold} must be in (0, 1].")
    own = POSTERIOR[rule]
    return (own[0] if threshold is None else threshold, own[1] if alpha is None else alpha)
