"""Distributions of the next token given every prefix, as arrays that can be enumerated.

Such a tree is [cases, C, V]: context 0 is the empty prefix, context c followed by token t is
context c * V + 1 + t. Prefixes of one length are contiguous, in dictionary order.
"""

import numpy as np


def num_contexts(size: int, depth: int) -> int:
    """Return the number of prefixes of up to ``depth`` tokens."""
    return sum(size**length for length in range(depth + 1))


def level(size: int, length: int) -> slice:
    """Return the slice of the contexts of this length."""
    return slice(num_contexts(size, length - 1), num_contexts(size, length))


def spell(size: int, depth: int) -> np.ndarray:
    """Return the tokens [C, depth] of every context, -1 past its length."""
    words = np.full((1, depth), -1)
    tree = [words]
    for length in range(depth):
        words = words.repeat(size, axis=0)
        words[:, length] = np.tile(np.arange(size), len(words) // size)
        tree.append(words)
    return np.concatenate(tree)


def continued(mass: np.ndarray, tree: np.ndarray, horizon: int) -> np.ndarray:
    """Return the probabilities [cases, V ** horizon] of texts that begin with random prefixes.

    ``mass`` [cases, C] is the probability of each prefix; ``tree`` continues it to ``horizon``
    tokens.
    """
    cases, _, size = tree.shape
    carried = np.zeros((cases, 1))
    for length in range(horizon):
        here = level(size, length)
        carried = carried + mass[:, here]
        carried = (carried[..., None] * tree[:, here]).reshape(cases, -1)
    return carried + mass[:, level(size, horizon)]


def texts(tree: np.ndarray, horizon: int) -> np.ndarray:
    """Return the probabilities [cases, V ** horizon] of the texts sampled from a tree."""
    mass = np.zeros((len(tree), num_contexts(tree.shape[-1], horizon)))
    mass[:, 0] = 1.0
    return continued(mass, tree, horizon)


def transport_bound(p_tree: np.ndarray, q_tree: np.ndarray, K: int) -> np.ndarray:
    """Return an upper bound [cases] on any exact rule's tokens per round, on a chain from q.

    Optimal transport between the drafted and the target's own texts: prefixes of i tokens
    agree at most with probability sum(min(P_i, Q_i)). A rule that sees p along the draft
    only cannot always reach it: Sun et al. 2024, section 2, where it is 12/9 against 11/9.
    """
    pairs = [(texts(p_tree, i), texts(q_tree, i)) for i in range(1, K + 1)]
    return 1.0 + np.sum([np.minimum(p, q).sum(axis=-1) for p, q in pairs], axis=0)
