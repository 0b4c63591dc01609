"""Two samples, one law? Pearson's chi-square on merged cells, and how many draws it needs.

A cell is a tuple of tokens, the beginning of a text. A rare one is merged into what is left
of it without its last token, so that nothing common is thrown together.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import root_scalar
from scipy.stats import chi2, chi2_contingency, chisquare, ncx2

ALPHA = 0.01
LEAST = 10  # expected draws per cell and sample; rarer cells are merged
Cell = tuple[int, ...]
Weights = Mapping[Cell, int | float]


def sample_size(
    num_cells: int, tv: float, power: float, alpha: float = ALPHA, *, samples: int = 2
) -> int:
    """Return the draws per sample that reject laws ``tv`` apart with probability ``power``.

    With two samples of n draws the noncentrality is n/2 times the sum of d^2/m, d the
    difference and m the mean of the laws; since the |d| sum to 2 tv, it is at least 2 n tv^2
    (Cauchy-Schwarz). With one sample and a known law it is at least 4 n tv^2.
    """
    freedom = num_cells - 1
    critical = chi2.isf(alpha, freedom)
    needed = root_scalar(
        lambda shift: ncx2.sf(critical, freedom, shift) - power, bracket=(1e-6, 1e4)
    ).root
    return int(needed / (4 / samples * tv**2)) + 1


def merge(weight: Weights, *columns: Weights, least: int | float, most: int) -> np.ndarray:
    """Merge cells that weigh less than ``least``, or more until at most ``most`` are left.

    Returns the columns [cells, columns]. What is light even when merged is left out.
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
    """Merge the cells of two samples: counts [cells, 2]."""
    return merge(ours + theirs, ours, theirs, least=2 * LEAST, most=most)


def merge_law(counts: Counter, law: Mapping[Cell, float], most: int) -> np.ndarray:
    """Merge the cells of a sample and the law of its beginnings: counts, expected [cells, 2].

    ``law`` gives, for some beginnings, the probability of a text that begins so and goes on
    like no other of them; one of them is (), so that every text has its cell.
    """
    seen, num = Counter(), counts.total()
    for cell, count in counts.items():
        while cell not in law:
            cell = cell[:-1]
        seen[cell] += count
    expected = {cell: num * chance for cell, chance in law.items()}
    return merge(expected, seen, expected, least=LEAST, most=most)


def p_value(ours: Counter, theirs: Counter, most: int = 10**6) -> float:
    """Return the chance of samples this different under one common law."""
    return p_value_of_samples(merge_samples(ours, theirs, most))


def p_value_of_samples(table: np.ndarray) -> float:
    """Return the chance of counts [cells, 2] this different under one common law."""
    if len(table) < 2:
        return 1.0
    test: Any = chi2_contingency(table, correction=False)
    return float(test.pvalue)


def p_value_of_law(table: np.ndarray) -> float:
    """Return the chance of counts this far from what is expected [cells, 2]."""
    if len(table) < 2:
        return 1.0
    seen, expected = table.T
    test: Any = chisquare(seen, expected * (seen.sum() / expected.sum()))
    return float(test.pvalue)


def total_variation(table: np.ndarray) -> float:
    """Return the total variation between two columns' laws [cells, 2]."""
    shares = table / table.sum(axis=0)
    return float(abs(shares[:, 0] - shares[:, 1]).sum() / 2)


def expected_variation(table: np.ndarray, *, samples: int = 2) -> float:
    """Return the mean total variation that chance alone makes: samples differ under one law.

    Every cell's difference is nearly normal, of variance m (1 - m) (1 / n + 1 / n').
    """
    num = table.sum(axis=0)
    law = table.sum(axis=1) / num.sum() if samples == 2 else table[:, 1] / num[1]
    variance = law * (1 - law) * (1 / num[:samples]).sum()
    return float(np.sqrt(2 / np.pi * variance).sum() / 2)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for their number (Holm 1979), in their order."""
    order, worst = np.argsort(p_values), 0.0
    adjusted = np.zeros(len(p_values))
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted.tolist()
