"""Random pairs of target and draft distributions, with the edge cases where rules break."""

import numpy as np

from specjax.audit.prefixes import num_contexts

PARTS = 16  # every probability is a multiple of 1 / PARTS
KINDS = (
    "any", "peaked", "alike", "same", "disjoint", "tied", "uniform",
    "sure draft", "sure target", "sure of the same", "half impossible",
)  # fmt: skip


def random_cases(num: int, size: int, K: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return random pairs (p_tree, q_tree) [num, C, V], ``KINDS`` in turn; all contain zeros."""
    rng = np.random.default_rng(seed)

    def draw(concentration: float) -> np.ndarray:
        shares = rng.dirichlet(np.full(size, concentration), (num, num_contexts(size, K)))
        return rng.multinomial(PARTS, shares) / PARTS

    p, q, sharp, blur = draw(1.0), draw(1.0), draw(0.3), draw(1.0)
    sure = np.eye(size)[rng.integers(size, size=p.shape[:2])]
    left = np.arange(size) < (size + 1) // 2
    even = np.full_like(p, 1 / size)
    one_side, other_side = on_side(p, left), on_side(q, ~left)
    pairs = {
        "any": (p, q),
        "peaked": (sharp, q),
        "alike": (p, (3 * p + blur) / 4),
        "same": (p, p),
        "disjoint": (one_side, other_side),
        "tied": ((p + p[..., ::-1]) / 2, (q + q[..., ::-1]) / 2),
        "uniform": (even, q),
        "sure draft": (p, sure),
        "sure target": (sure, q),
        "sure of the same": (sure, sure),
        "half impossible": (one_side, q),
    }
    kind = [KINDS[i % len(KINDS)] for i in range(num)]
    chosen = [(pairs[name][0][i], pairs[name][1][i]) for i, name in enumerate(kind)]
    return np.stack([p for p, _ in chosen]), np.stack([q for _, q in chosen])


def on_side(probs: np.ndarray, side: np.ndarray) -> np.ndarray:
    """Return distributions on one side of the vocabulary; its first token takes the rest."""
    kept = np.where(side, probs, 0.0)
    rest = 1.0 - kept.sum(axis=-1, keepdims=True)
    return kept + rest * (np.arange(probs.shape[-1]) == side.argmax())
