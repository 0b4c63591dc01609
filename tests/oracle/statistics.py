"""Two samples, one law? Pearson's chi-square, and how many draws it needs."""

from collections import Counter

from scipy.optimize import brentq
from scipy.stats import chi2, chi2_contingency, ncx2

ALPHA = 0.01
LEAST = 10  # expected draws per cell and sample; rarer cells are put together


def sample_size(num_cells: int, tv: float, power: float, alpha: float = ALPHA) -> int:
    """Return the draws per sample that reject laws ``tv`` apart with probability ``power``.

    With n draws each, the noncentrality is n/2 times the sum of d^2/m, d the difference and
    m the mean of the laws; since the |d| sum to 2 tv, it is at least 2 n tv^2 (Cauchy-Schwarz).
    """
    freedom = num_cells - 1
    critical = chi2.isf(alpha, freedom)
    needed = brentq(lambda shift: ncx2.sf(critical, freedom, shift) - power, 1e-6, 1e4)
    return int(needed / (2 * tv**2)) + 1


def p_value(ours: Counter, theirs: Counter) -> float:
    """Return the chance of samples this different under one common law."""
    total = ours + theirs
    rows = [(ours[cell], theirs[cell]) for cell in total if total[cell] >= 2 * LEAST]
    rest = tuple(sum(c[cell] for cell in total if total[cell] < 2 * LEAST) for c in (ours, theirs))
    if sum(rest) >= 2 * LEAST:
        rows.append(rest)
    return float(chi2_contingency(rows, correction=False).pvalue)
