"""Block verification: accept by the probability of whole prefixes, never fewer tokens.

Sun, Mendlovic, Leviathan et al. 2024, "Block Verification Accelerates Speculative Decoding".
"""

from collections.abc import Sequence

import numpy as np

from specjax.theory.arrays import Real, Value, require_distributions


def block_verification_tokens(p_tree: Sequence[Real], q_tree: Sequence[Real]) -> Value:
    """Return the expected tokens per step (bonus included) of block verification, by enumeration.

    Sun et al. 2024 (arXiv 2403.10444), Algorithm 2; the enumeration is ours.
    ``p_tree[i]``, ``q_tree[i]`` [V, ..., V] (i + 1 axes) are the distributions of token i + 1 given
    the i before it, i < K. Along a draft, r_i = min(r_{i-1} p / q, 1) with r_0 = 1; S_i = sum
    max(r_i p - q, 0) over the next token; h_i = S_i / (S_i + 1 - r_i), h_K = r_K. The longest
    prefix whose independent coin h_i comes up is accepted. Never fewer than the token rule,
    ``token_verification_tokens``. Cost V^K; NumPy only.
    Raises ValueError for rows that are no distributions or trees of different shapes.
    """
    p_tree, q_tree = check(p_tree, q_tree)
    reach, kept, heads = np.ones(()), np.ones(()), []
    for p, q in zip(p_tree, q_tree, strict=True):
        excess = np.maximum(kept[..., None] * p - q, 0.0).sum(axis=-1)
        heads.append(coin(excess, kept))
        reach = reach[..., None] * q
        kept = np.minimum(kept[..., None] * ratio(p, q), 1.0)
    heads.append(kept)
    accepted, miss = 0.0, np.ones_like(reach)
    for head in reversed(heads[1:]):  # accepted >= i iff some coin j >= i came up
        miss = miss * (1.0 - head.reshape(head.shape + (1,) * (miss.ndim - head.ndim)))
        accepted += (reach * (1.0 - miss)).sum()
    return 1.0 + accepted


def token_verification_tokens(p_tree: Sequence[Real], q_tree: Sequence[Real]) -> Value:
    """Return the expected tokens per step (bonus included) of token-wise rejection sampling.

    1 + sum over drafts and i of prod_{j<=i} min(p, q); Leviathan et al. 2023 (arXiv 2211.17192).
    Arguments, cost and errors are ``block_verification_tokens``'s.
    """
    p_tree, q_tree = check(p_tree, q_tree)
    tokens, accepted = 1.0, np.ones(())
    for p, q in zip(p_tree, q_tree, strict=True):
        accepted = accepted[..., None] * np.minimum(p, q)
        tokens += accepted.sum()
    return tokens


def ratio(p: Value, q: Value) -> Value:
    """Return p / q, and 0 for a token that is never drafted."""
    return np.where(q > 0, p / np.where(q > 0, q, 1.0), 0.0)


def coin(excess: Value, kept: Value) -> Value:
    """Return h = S / (S + 1 - r); 1 where nothing is left to gain (S = 0, r = 1)."""
    weight = excess + 1.0 - kept
    return np.where(weight > 0, excess / np.where(weight > 0, weight, 1.0), 1.0)


def check(p_tree: Sequence[Real], q_tree: Sequence[Real]):
    """Validate two trees of distributions and return them as float64 arrays."""
    pairs = [
        (np.asarray(p, float), np.asarray(q, float)) for p, q in zip(p_tree, q_tree, strict=False)
    ]
    shapes = [(p.shape, q.shape) for p, q in pairs]
    size = shapes[0][0][-1] if shapes else 0
    wanted = [((size,) * (i + 1),) * 2 for i in range(len(q_tree))]
    if len(p_tree) < len(q_tree) or shapes != wanted:
        raise ValueError(f"level i needs shape (V,) * (i + 1) in both trees, got {shapes}")
    for p, q in pairs:
        require_distributions(p_tree=p, q_tree=q)
    return [p for p, _ in pairs], [q for _, q in pairs]
