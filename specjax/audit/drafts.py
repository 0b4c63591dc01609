"""Enumerate every draft that a drafter can draw from q, with its probability."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Drafts(NamedTuple):
    """Every draft of every case: R = cases * V ** (N - 1)."""

    case: np.ndarray  # [R]
    tokens: np.ndarray  # [R, N]; the root is in the text already
    contexts: np.ndarray  # [R, N] the prefix that each node ends
    valid: np.ndarray  # [R, N]; False for a sibling if earlier ones exhausted q
    probs: np.ndarray  # [R, N, V] distribution that each node is claimed to be drawn from
    chances: np.ndarray  # [R] probability of the draft


def draw(
    q_tree: np.ndarray,
    drawn: np.ndarray,
    shape: tuple[int, ...],
    there: np.ndarray,
    replacement: bool,
) -> Drafts:
    """Return every draft of a shape; a node that is not ``there`` always has token 0.

    Args:
        q_tree: [cases, C, V] the distribution that nodes are claimed to be drawn from.
        drawn: [cases, C, V] the one that they are drawn from.
        shape: parents of the nodes.
        there: [N] which nodes exist.
        replacement: whether siblings are drawn with replacement.
    """
    (cases, _, size), nodes = q_tree.shape, len(shape)
    tokens = np.indices((size,) * (nodes - 1)).reshape(nodes - 1, -1).T
    tokens = np.concatenate([np.zeros((len(tokens), 1), int), tokens], axis=1)
    contexts = np.zeros_like(tokens)
    for node in range(1, nodes):
        contexts[:, node] = contexts[:, shape[node]] * size + 1 + tokens[:, node]

    def node_probs(tree):  # [cases, D, N, V]
        given = np.zeros((cases, *tokens.shape, size))
        for node in range(1, nodes):
            probs = tree[:, contexts[:, shape[node]]]
            for sibling in range(1, node):
                if shape[sibling] == shape[node] and not replacement:
                    probs = np.where(tokens[:, sibling, None] == np.arange(size), 0.0, probs)
            total = probs.sum(axis=-1, keepdims=True)
            given[:, :, node] = probs / np.where(total > 0, total, 1.0)
        return given

    probs, truth = node_probs(q_tree), node_probs(drawn)
    valid = truth.any(axis=-1) & there
    valid[..., 0] = True
    picked = np.take_along_axis(truth, tokens[None, :, :, None], axis=-1)[..., 0]
    chances = np.where(valid, picked, tokens == 0)[..., 1:].prod(axis=-1)
    return Drafts(
        case=np.arange(cases).repeat(len(tokens)),
        tokens=np.tile(tokens, (cases, 1)),
        contexts=np.tile(contexts, (cases, 1)),
        valid=valid.reshape(-1, nodes),
        probs=probs.reshape(-1, nodes, size),
        chances=chances.ravel(),
    )


def batches(drafts: Drafts, most: int) -> Iterator[Drafts]:
    """Yield batches of equal size; the padding of the last one has probability 0."""
    rows = len(drafts.chances)
    number = -(-rows // max(most, 1))
    each = -(-rows // number)
    for start in range(0, rows, each):
        index = np.arange(start, start + each)
        some = Drafts(*(leaf[index.clip(max=rows - 1)] for leaf in drafts))
        yield some._replace(chances=np.where(index < rows, some.chances, 0.0))
