"""The statistics keep what they promise, on samples of known laws."""

from collections import Counter

import numpy as np
import pytest

from specjax.audit import cells
from specjax.theory import goodness

MOST, TV, POWER, RUNS = 12, 0.1, 0.9, 200
WORDS = [(a, b) for a in range(8) for b in range(8)]


def laws(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a law of WORDS and another: the same, or one TV away from it in twelve words."""
    rng = np.random.default_rng(1)
    law = rng.dirichlet(np.full(len(WORDS), 0.5))
    if kind != "rare words":
        law = np.where(np.arange(len(WORDS)) < MOST, 1 / MOST, 0.0)
    other = law.copy()
    if kind == "apart":
        other[:MOST] += np.resize([2 * TV / MOST, -2 * TV / MOST], MOST)
    return law, other


def sample(rng, law: np.ndarray, num: int) -> Counter:
    """Draw counts of words."""
    counts = rng.multinomial(num, law)
    return Counter({word: int(n) for word, n in zip(WORDS, counts, strict=True) if n})


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("kind", ["same", "rare words", "apart"])
def test_power_and_false_alarms_are_as_stated(kind, samples):
    rng, (law, other), alpha = np.random.default_rng(0), laws(kind), 0.05
    num = goodness.samples_to_detect_tv(MOST, TV, POWER, alpha, samples=samples)
    rejected, found, expected = 0, [], []
    for _ in range(RUNS):
        ours = sample(rng, other, num)
        if samples == 2:
            table = cells.merge_samples(ours, sample(rng, law, num), MOST)
            p_value = goodness.homogeneity_p_value(table)
        else:
            truth = dict(zip(WORDS, law.tolist(), strict=True)) | {(): 0.0}
            table = cells.merge_expected(ours, truth, MOST)
            p_value = goodness.expected_p_value(table)
        assert len(table) <= MOST
        rejected += p_value < alpha
        found.append(goodness.total_variation(table))
        expected.append(goodness.expected_variation(table, samples=samples))
    error = 4 * np.sqrt(0.25 / RUNS) if kind == "apart" else 4 * np.sqrt(alpha / RUNS)
    assert abs(rejected / RUNS - (POWER if kind == "apart" else alpha)) < error
    if kind == "apart":
        assert np.mean(found) > np.mean(expected) + TV / 3
    else:
        assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.05)


def test_rare_cells_are_merged_into_their_beginnings():
    total = Counter({(1, 1): 100, (1, 2): 6, (1, 3): 9, (2, 1): 30, (3, 1): 2, (4, 1): 1})
    table = cells.merge(total, total, least=10, most=99)
    assert sorted(table[:, 0]) == [15, 30, 100]  # (1, *) is 6 + 9; 2 + 1 is too light for a cell
    assert sorted(cells.merge(total, total, least=3, most=99)[:, 0]) == [3, 6, 9, 30, 100]


def test_a_certain_text_is_no_evidence():
    sure = Counter({(1, 1): 500})
    assert cells.p_value(sure, sure) == 1.0
    assert (
        goodness.expected_p_value(cells.merge_expected(sure, {(1, 1): 1.0, (): 0.0}, MOST)) == 1.0
    )


def test_holm_adjusts_as_the_textbook_does():
    assert goodness.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert goodness.holm([0.9, 0.8]) == [1.0, 1.0]
