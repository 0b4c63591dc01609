"""Mixtures of experts: the number of experts that a pass reads, and the cost of verification.

MoESD (Huang et al. 2025, arXiv 2505.19645). Each token is routed to k of E experts, independently
and evenly.
"""

import math
from collections.abc import Callable

from specjax.theory.arrays import Real, Value, arrays, require, require_costs


def moe_active_experts(E: Real, k: Real, T: Real) -> Value:
    """Return E (1 - (1 - k/E)^T), the expected number of experts read by a pass over T tokens.

    Huang et al. 2025 (arXiv 2505.19645).
    MoESD; independent, even routing. Raises ValueError unless 0 <= k <= E, E >= 1, T >= 0.

    >>> round(float(moe_active_experts(E=128, k=8, T=4)), 1)
    29.1
    """
    E, k, T = check(E, k, T)
    return (E * (1.0 - (1.0 - k / E) ** T))[()]


def moe_tokens_per_expert(E: Real, k: Real, T: Real) -> Value:
    """Return T k / active, the tokens per expert that is read: a pass's arithmetic intensity.

    Huang et al. 2025 (arXiv 2505.19645).
    Tends to 1 for T = 1 and to T k / E for many tokens. Raises ValueError as
    ``moe_active_experts`` does, and for T k = 0.
    """
    require("T", T, 1)
    require("k", k, 1)
    active = moe_active_experts(E, k, T)
    _, k, T, active = arrays(k, T, active)
    return (T * k / active)[()]


def moe_full_activation_tokens(E: Real, k: Real, share: Real = 0.95) -> Value:
    """Return ln(1 - share) / ln(1 - k/E), the tokens whose pass reads that share of the experts.

    Huang et al. 2025 (arXiv 2505.19645).
    MoESD: from there on a verified block costs hardly more than one token. 1 if k = E.
    Raises ValueError unless 0 < k <= E and 0 <= share < 1.
    """
    require("share", share, 0.0, 1.0 - 1e-12)
    require("k", k, 1)
    E, k, share = check(E, k, share)
    xp, idle, share = arrays(1.0 - k / E, share)
    tokens = xp.log1p(-share) / xp.log(xp.where(idle > 0, idle, 0.5))
    return xp.where(idle > 0, tokens, 1.0)[()]


def moe_busiest_device(E: Real, k: Real, T: Real, num_devices: int) -> Value:
    """Return the expected number of experts that the busiest of n devices reads in a pass.

    Experts are dealt out, E / n to each (expert parallel): a pass waits for the device with the
    most. Each expert is read with the probability of Huang et al. 2025 (arXiv 2505.19645),
    independently: the mean of the largest of n binomial variables. Split inside, every device
    reads the n-th part of all: ``moe_active_experts / n``.
    Raises ValueError as ``moe_active_experts`` does, and unless n divides E.

    >>> for tokens in (1, 5, 64):  # Qwen3's 128 experts of which 8, on 8 devices
    ...     even = moe_active_experts(128, 8, tokens) / 8
    ...     print(f"{float(moe_busiest_device(128, 8, tokens, 8) / even):.2f}")
    2.51
    1.59
    1.02
    """
    require("num_devices", num_devices, 1)
    each, rest = divmod(int(E), num_devices)
    if rest or each != E / num_devices:
        raise ValueError(f"{num_devices} devices do not divide {E} experts")
    xp, share = arrays(moe_active_experts(E, k, T) / E)
    share = xp.clip(share, 1e-12, 1 - 1e-12)
    most = below = xp.zeros_like(share)  # the mean sums the chances to exceed each number
    for number in range(each):
        ways = math.log(math.comb(each, number))
        odds = number * xp.log(share) + (each - number) * xp.log1p(-share)
        below = below + xp.exp(ways + odds)
        most = most + 1 - xp.minimum(below, 1.0) ** num_devices
    return most[()]


def target_efficiency(B: Real, K: Real, time: Callable[[Value, Value], Value]) -> Value:
    """Return T(B, 1) / T(B, K + 1), the target efficiency: 1 if verifying a block costs nothing.

    Huang et al. 2025 (arXiv 2505.19645).
    MoESD. ``time(B, m)`` gives the seconds of a pass over B rows of m tokens. 1 is a
    free block. Raises ValueError for negative arguments.
    """
    require_costs(B=B, K=K)
    _, B, K = arrays(B, K)
    return time(B, 1.0) / time(B, K + 1.0)


def check(E: Real, k: Real, T: Real):
    """Return the arguments validated and with equal rank."""
    require("E", E, 1)
    require_costs(k=k, T=T)
    _, E, k, T = arrays(E, k, T)
    require("E - k", E - k, 0)
    return E, k, T
