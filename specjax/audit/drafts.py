"""Every draft that a drafter may make of a law, and the chance that it does."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Drafts(NamedTuple):
    """Every draft of every case: R = cases * V ** (N - 1)."""

    case: np.ndarray  # [R]
    tokens: np.ndarray  # [R, N]; the root is in the text already
    contexts: np.ndarray  # [R, N] the prefix that each node ends
    valid: np.ndarray  # [R, N]; a sibling is not, when its elders have used q up
    probs: np.ndarray  # [R, N, V] the law each node is said to be drawn from
    chances: np.ndarray  # [R] probability of the draft


def draw(
    q_tree: np.ndarray,
    drawn: np.ndarray,
    shape: tuple[int, ...],
    there: np.ndarray,
    replacement: bool,
) -> Drafts:
    """Enumerate the drafts of a shape. Where a node is not ``there`` its token is always 0."""
    (cases, _, size), nodes = q_tree.shape, len(shape)
    tokens = np.indices((size,) * (nodes - 1)).reshape(nodes - 1, -1).T
    tokens = np.concatenate([np.zeros((len(tokens), 1), int), tokens], axis=1)
    contexts = np.zeros_like(tokens)
    for node in range(1, nodes):
        contexts[:, node] = contexts[:, shape[node]] * size + 1 + tokens[:, node]

    def laws(tree):  # [cases, D, N, V]
        given = np.zeros((cases, *tokens.shape, size))
        for node in range(1, nodes):
            law = tree[:, contexts[:, shape[node]]]
            for elder in range(1, node):
                if shape[elder] == shape[node] and not replacement:
                    law = np.where(tokens[:, elder, None] == np.arange(size), 0.0, law)
            total = law.sum(axis=-1, keepdims=True)
            given[:, :, node] = law / np.where(total > 0, total, 1.0)
        return given

    probs, truth = laws(q_tree), laws(drawn)
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
    """Split drafts into batches of one size; what fills the last one has no chance."""
    rows = len(drafts.chances)
    number = -(-rows // max(most, 1))
    each = -(-rows // number)
    for start in range(0, rows, each):
        index = np.arange(start, start + each)
        some = Drafts(*(leaf[index.clip(max=rows - 1)] for leaf in drafts))
        yield some._replace(chances=np.where(index < rows, some.chances, 0.0))
