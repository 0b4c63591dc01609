"""The chance that a draft token is accepted, from the distributions of target and draft.

Leviathan's letters: p of the target, q of the draft, both [..., V] and warped alike. Results [...]
in [0, 1].
"""

from types import ModuleType

import numpy as np

from specjax.theory.arrays import (
    Real,
    Scalar,
    Value,
    arrays,
    library_of,
    require,
    require_distributions,
)

RULES = ("speculative", "match", "lenient", "one-hot", "coupled")


def acceptance_prob(p: Real, q: Real, rule: str = "speculative", lenience: Scalar = 1.0) -> Value:
    """Return alpha, the chance that a token drafted from q is accepted under p.

    - "speculative": sum min(p, q) = 1 - TV (Leviathan et al. 2023, arXiv 2211.17192, Thm 3.5).
      Exact.
    - "match": sum p q, accepted if an independent sample of p is the same token. Exact too, but
      never above max q.
    - "lenient": sum min(p / l, q) with ``lenience`` l in (0, 1] (idem, A.5). Lossy for l < 1.
    - "one-hot": p[argmax q], a draft that proposes its most likely token. Exact.
    - "coupled": sum_x 1 / sum_y max(p_y / p_x, q_y / q_x), both choose with the same Gumbel noise
      (Daliri, Musco & Suresh 2025, arXiv 2408.07978). Lossless.

    Differentiable (one-hot: in p). Raises ValueError for rows that are no distributions, an unknown
    rule or a lenience outside (0, 1].

    >>> round(float(acceptance_prob([0.6, 0.4], [0.2, 0.8])), 3)
    0.6
    """
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    require("lenience", lenience, np.finfo(float).tiny, 1.0)
    require_distributions(p=p, q=q)
    xp, p, q = arrays(p, q)
    if rule == "match":
        return (p * q).sum(axis=-1)
    if rule == "one-hot":
        return (p * is_best(xp, q)).sum(axis=-1)
    if rule == "coupled":
        return coupled_mass(xp, p, q).sum(axis=-1)
    return xp.minimum(p / lenience if rule == "lenient" else p, q).sum(axis=-1)


def coupled_mass(xp: ModuleType, p: Value, q: Value) -> Value:
    """Return the chance [..., V] that x = argmax(ln p + g) = argmax(ln q + g), g Gumbel noise.

    A race of exponential clocks e: x wins both iff e_y > e_x max(p_y / p_x, q_y / q_x) for all
    y != x, which has chance 1 / sum_y max(p_y / p_x, q_y / q_x). A token that p or q never
    chooses wins nothing.
    """
    alive = (p > 0) & (q > 0)
    p_x, q_x = xp.where(alive, p, 1.0)[..., :, None], xp.where(alive, q, 1.0)[..., :, None]
    rates = xp.maximum(p[..., None, :] / p_x, q[..., None, :] / q_x).sum(axis=-1)
    return xp.where(alive, 1.0 / rates, 0.0)


def tv(p: Real, q: Real) -> Value:
    """Return the total variation distance sum |p - q| / 2 [...], 1 - alpha of rejection sampling.

    Leviathan et al. 2023 (arXiv 2211.17192), Def. 3.2 and Cor. 3.6. Raises ValueError for rows that
    are no distributions.

    >>> round(float(tv([0.6, 0.4], [0.2, 0.8])), 3)
    0.4
    """
    require_distributions(p=p, q=q)
    xp, p, q = arrays(p, q)
    return xp.abs(p - q).sum(axis=-1) / 2.0


def residual(p: Real, q: Real) -> Value:
    """Return norm(max(p - q, 0)) [..., V], which recovered tokens are drawn from.

    Leviathan et al. 2023 (arXiv 2211.17192), sec. 2.3. Where p = q nothing is rejected, and p
    stands for it. Raises ValueError for rows that are no distributions.

    >>> residual([0.6, 0.4], [0.2, 0.8]).tolist()
    [1.0, 0.0]
    """
    require_distributions(p=p, q=q)
    xp, p, q = arrays(p, q)
    left = xp.maximum(p - q, 0.0)
    mass = left.sum(axis=-1, keepdims=True)
    return xp.where(mass > 0, left / xp.where(mass > 0, mass, 1.0), p)


def greedy_draft_alpha(p: Real, q: Real) -> Value:
    """Return ``p[argmax q]``, the acceptance of a draft that proposes its most likely token.

    A one-hot q makes sum min(p, q) of Leviathan et al. 2023 (arXiv 2211.17192), Thm 3.5, this; it
    beats sampling from q where p[argmax q] > sum min(p, q). Raises ValueError for rows that are no
    distributions.

    >>> float(greedy_draft_alpha([0.6, 0.4], [0.2, 0.8]))
    0.4
    """
    return acceptance_prob(p, q, "one-hot")


def coupled_bound(p: Real, q: Real) -> Value:
    """Return (1 - TV) / (1 + TV) [...], below which a coupled draft's acceptance never falls.

    Daliri, Musco & Suresh 2025 (arXiv 2408.07978), "Coupling without communication and
    drafter-invariant speculative decoding". Raises ValueError for rows that are no distributions.

    >>> round(float(coupled_bound([0.6, 0.4], [0.2, 0.8])), 3)
    0.429
    """
    distance = tv(p, q)
    return (1.0 - distance) / (1.0 + distance)


def alpha_vs_temperature(
    lp: Real,
    lq: Real,
    temperatures: Real,
    top_p: Scalar = 1.0,
    top_k: Scalar | None = None,
    truncate: str = "both",
) -> Value:
    """Return alpha(T) = sum min(p_T, q_T) [T, ...], both warped by temperature and truncation.

    ``lp``, ``lq`` [..., V] are logits of target and draft, ``temperatures`` [T]; T = 0 is one-hot.
    Leviathan et al. 2023 (arXiv 2211.17192), sec. 2.2: warp both and compare. ``truncate="target"``
    leaves top-k and top-p off the draft, as some engines do. Differentiable in logits and T > 0.
    Raises ValueError for a negative temperature, top_p outside (0, 1], top_k < 1 or another
    ``truncate``.
    """
    require("temperatures", temperatures, 0)
    require("top_p", top_p, np.finfo(float).tiny, 1.0)
    require("top_k", 1 if top_k is None else top_k, 1)
    if truncate not in ("both", "target"):
        raise ValueError(f"truncate must be 'both' or 'target', got {truncate!r}")
    xp, lp, lq = arrays(lp, lq)
    xp = library_of(lp, temperatures)
    hot = xp.asarray(temperatures, lp.dtype).reshape((-1,) + (1,) * lp.ndim)
    draft = (top_p, top_k) if truncate == "both" else (1.0, None)
    p, q = warp(xp, lp[None], hot, top_p, top_k), warp(xp, lq[None], hot, *draft)
    return xp.minimum(p, q).sum(axis=-1)


def warp(
    xp: ModuleType,
    logits: Value,
    temperature: Value,
    top_p: Scalar = 1.0,
    top_k: Scalar | None = None,
) -> Value:
    """Return probabilities of logits [..., V]: temperature, then top-k, then top-p of the rest.

    Ties at a threshold all stay, as in ``sampling.truncate``; temperature 0 is one-hot.
    """
    hot = temperature > 0
    size = logits.shape[-1]
    centred = logits - logits.max(axis=-1, keepdims=True)
    weights = xp.exp(centred / xp.where(hot, temperature, 1.0))
    if top_k is not None and top_k < size:
        least = xp.sort(weights, axis=-1)[..., size - top_k, None]
        weights = xp.where(weights >= least, weights, 0.0)
    if top_p < 1.0:
        falling = xp.sort(weights, axis=-1)[..., ::-1]
        before = xp.cumsum(falling, axis=-1) - falling
        needed = before < top_p * falling.sum(axis=-1, keepdims=True)
        least = xp.where(needed, falling, xp.inf).min(axis=-1, keepdims=True)
        weights = xp.where(weights >= least, weights, 0.0)
    return xp.where(hot, weights / weights.sum(axis=-1, keepdims=True), is_best(xp, logits))


def is_best(xp: ModuleType, weights: Value) -> Value:
    """Return one-hot rows [..., V]: 1 at the first of the greatest weights."""
    index = xp.arange(weights.shape[-1]).reshape((1,) * (weights.ndim - 1) + (-1,))
    return xp.where(index == weights.argmax(axis=-1)[..., None], 1.0, 0.0)
