"""The cells of an audit's chi-square tests: counts of token tuples, rare ones merged.

A cell is a tuple of tokens, the beginning of a text. A rare cell is merged into the cell without
its last token, so that common texts are never pooled. The tests are in ``theory.goodness``.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from specjax.theory.goodness import homogeneity_p_value

LEAST = 10  # expected samples per cell; rarer cells are merged
Cell = tuple[int, ...]
Weights = Mapping[Cell, int | float]


def merge(weight: Weights, *columns: Weights, least: int | float, most: int) -> np.ndarray:
    """Return the columns [cells, columns] with rare cells merged.

    Args:
        weight: decides which cells are rare.
        columns: the values to sum within each merged cell.
        least: cells that weigh less are merged, and left out if they weigh less even then.
        most: ``least`` grows until at most so many cells are left.
    """
    while True:
        rows = {
            cell: np.array([heavy, *(column.get(cell, 0) for column in columns)], float)
            for cell, heavy in weight.items()
        }
        for length in range(max(map(len, rows), default=0), 0, -1):
            for cell in [c for c in rows if len(c) == length and rows[c][0] < least]:
                row = rows.pop(cell)
                rows[cell[:-1]] = rows.get(cell[:-1], 0) + row
        kept = [row[1:] for _, row in sorted(rows.items()) if row[0] >= least]
        if len(kept) <= most:
            return np.array(kept).reshape(-1, len(columns))
        least *= 1.2


def merge_samples(ours: Counter, theirs: Counter, most: int) -> np.ndarray:
    """Return the counts [cells, 2] of two samples, rare cells merged."""
    return merge(ours + theirs, ours, theirs, least=2 * LEAST, most=most)


def merge_expected(counts: Counter, probs: Mapping[Cell, float], most: int) -> np.ndarray:
    """Return the counts and expected counts [cells, 2] of one sample, rare cells merged.

    ``probs`` gives, for some prefixes, the probability of a text that begins with the prefix and
    with no longer one of them. It contains (), so that every text has a cell. ``most`` as in
    ``merge``.
    """
    seen, num = Counter(), counts.total()
    for cell, count in counts.items():
        while cell not in probs:
            cell = cell[:-1]
        seen[cell] += count
    expected = {cell: num * chance for cell, chance in probs.items()}
    return merge(expected, seen, expected, least=LEAST, most=most)


def p_value(ours: Counter, theirs: Counter, most: int = 10**6) -> float:
    """Return the p-value that two samples of texts have one distribution."""
    return homogeneity_p_value(merge_samples(ours, theirs, most))
