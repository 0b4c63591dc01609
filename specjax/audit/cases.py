"""Random pairs of laws, rational and full of the corners where rules break."""

import numpy as np

from specjax.audit.prefixes import num_contexts

PARTS = 16  # every probability is a multiple of 1 / PARTS
KINDS = ("any", "peaked", "same", "disjoint", "tied", "sure draft", "sure target", "impossible")


def random_cases(num: int, size: int, K: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw pairs (p_tree, q_tree) [num, C, V], ``KINDS`` in turn. Zeros are everywhere."""
    rng = np.random.default_rng(seed)

    def laws(concentration):
        shares = rng.dirichlet(np.full(size, concentration), (num, num_contexts(size, K)))
        return rng.multinomial(PARTS, shares) / PARTS

    p, q, kind = laws(1.0), laws(1.0), np.arange(num) % len(KINDS)
    sharp, sure = laws(0.3), np.eye(size)[rng.integers(size, size=p.shape[:2])]
    left = np.arange(size) < (size + 1) // 2
    where = {name: (kind == i)[:, None, None] for i, name in enumerate(KINDS)}
    p = np.where(where["peaked"], sharp, p)
    q = np.where(where["same"], p, q)
    p = np.where(where["disjoint"], one_sided(p, left), p)
    q = np.where(where["disjoint"], one_sided(q, ~left), q)
    p = np.where(where["tied"], (p + p[..., ::-1]) / 2, p)
    q = np.where(where["tied"], (q + q[..., ::-1]) / 2, q)
    q = np.where(where["sure draft"], sure, q)
    p = np.where(where["sure target"], sure, p)
    p = np.where(where["impossible"], one_sided(p, left), p)
    return p, q


def one_sided(law: np.ndarray, side: np.ndarray) -> np.ndarray:
    """Move a law's probability onto one side of the vocabulary."""
    kept = np.where(side, law, 0.0)
    rest = 1.0 - kept.sum(axis=-1, keepdims=True)
    return kept + rest * (np.arange(law.shape[-1]) == side.argmax())
