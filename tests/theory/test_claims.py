"""The guides' numbers, audited; read from the guides where they are, and from here anyway."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from specjax import theory
from specjax.theory.published import SUFFIX_BENCHMARK

SHARED = Path(__file__).parents[3] / "shared"
GUIDE = SHARED / "guides" / "4_inside_spec_decode.txt"
COST_GUIDE = SHARED / "guides" / "1_ngram_on_ascend.txt"
TABLE = SHARED / "data" / "suffix_benchmark.json"
absent = pytest.mark.skipif(not SHARED.is_dir(), reason="the guides are read from ../shared")

# Guide "speculative decoding inside vLLM": alpha = 0.8, K = 5, t_d = t_t / 10
PLACE, ACCEPTED, SPEEDUP, LIMIT = (0.8, 5, 0.1), 3.2, 2.1, 4.0
# Guide "n-gram on Ascend": 3 steps, 1.5 times the cost, 3 tokens, +100%
COST, TOKENS, STEPS, GAIN = 1.5, 3, 3, 2.0


def test_the_guides_example_is_none_of_the_right_numbers():
    for claimed in (ACCEPTED, SPEEDUP):
        claim = theory.check_claim(*PLACE, claimed)
        assert not claim.right
        assert (claim.accepted, claim.tokens) == pytest.approx((2.68928, 3.68928))
        assert claim.speedup == pytest.approx(2.45952)
        assert claim.expression in claim.says
    assert "limit" in theory.check_claim(*PLACE, ACCEPTED).says
    assert theory.check_claim(*PLACE, ACCEPTED).value == pytest.approx(3.2)
    assert theory.check_claim(*PLACE, SPEEDUP).value == pytest.approx(3.2 / 1.5)


def test_its_approximation_is_the_endless_sum_too_large_by_a_known_factor():
    claim = theory.check_claim(*PLACE, LIMIT)
    assert (claim.right, claim.formula) == (False, "limit of accepted")
    assert "too large by the factor 1 / (1 - alpha^K)" in claim.says
    assert claim.value / claim.accepted - 1 == pytest.approx(0.8**5 / (1 - 0.8**5))


def test_a_claim_is_held_beside_what_was_published():
    """Table 4 has K = 7 at alpha 0.80 and 0.82: 2.8x and 1.7x where 3.3x and 2.5x were expected."""
    found = theory.check_claim(0.8, 7, 0.04, 3.3).published
    near = [one for one in found if "Table 4" in one]
    assert [one.split()[1] for one in near] == ["2.8x,", "1.7x,"]
    assert any("EAGLE-2 (arXiv 2406.16858)" in one for one in found)
    assert not any("Chen" in one for one in found)  # 2x to 2.5x
    assert theory.check_claim(0.8, 7, 0.04, 3.3, kind="tokens").published == ()
    assert theory.check_claim(0.4, 1, 0.1, 99.0).published == ()


@pytest.mark.parametrize(
    ("claimed", "right", "formula"),
    [
        (2.68928, True, "accepted per step"),
        (3.68928, True, "tokens per step"),
        (2.45952, True, "speedup"),
        (2.46964, True, "speedup at the best K"),
        (1.7929, False, "accepted over cost"),
        (0.537856, True, "acceptance ratio"),
        (7.3786, False, "tokens over draft cost"),
        (2.6667, False, "limit of accepted over cost"),
        (99.0, False, "none"),
    ],
)
def test_each_number_finds_its_formula(claimed, right, formula):
    claim = theory.check_claim(*PLACE, claimed)
    assert (claim.right, claim.formula) == (right, formula)
    assert formula == "none" or claim.value == pytest.approx(claimed, abs=6e-5)


def test_three_tokens_at_one_and_a_half_the_cost_is_right_for_one_alpha():
    c, alpha = (COST - 1) / STEPS, theory.alpha_from_length(TOKENS, STEPS)
    assert alpha == pytest.approx(0.8105, abs=5e-5)
    assert c == pytest.approx(1 / 6)
    claim = theory.check_claim(0.8105, STEPS, c, GAIN)
    assert (claim.right, claim.formula) == (True, "speedup")
    assert theory.check_claim(0.8105, STEPS, c, 3).formula == "tokens per step"


def test_k_from_3_to_5_is_best_on_a_quarter_to_a_half_of_the_grid():
    shares = []
    for (low, high), c in (((0, 1), 0.2), ((0.3, 0.95), 0.3), ((0.5, 0.95), 0.2)):
        alphas, costs = np.linspace(low + 0.005, high - 0.005, 80), np.linspace(0.02, c, 80)
        best = theory.optimal_k(alphas[:, None], costs)
        shares.append(((best >= 3) & (best <= 5)).mean())
    assert 0.2 < shares[0] < 0.3 < shares[1] < 0.37 < shares[2] < 0.52


def test_the_kernel_shown_accepts_less_than_the_formula_above_it():
    """It compares the draft token with an independent sample of the target: sum p q."""
    p, q = [0.6, 0.3, 0.1], [0.5, 0.4, 0.1]
    assert theory.acceptance_prob(p, q, "match") < theory.acceptance_prob(p, q) - 0.4


def test_the_benchmarks_gains_are_base_over_spec_and_its_ratio_needs_an_adaptive_length():
    """Gains as printed; tokens per step are 1 + d a with d of 1.3 to 2.1, never 1 + 3 a."""
    for row in SUFFIX_BENCHMARK:
        gain = row.baseline_tpot_s / row.spec_tpot_s - 1
        assert gain == pytest.approx(row.published_tpot_gain, abs=0.004)
        assert row.spec_tps / row.baseline_tps - 1 == pytest.approx(
            row.published_tps_gain, abs=0.006
        )
        if row.concurrency == 1:
            assert 1.3 < gain / row.ratio < 2.1
            assert gain < 0.62 * 3 * row.ratio


def test_the_summary_contradicts_the_detail_rows():
    alone = {
        row.dataset: row.published_tps_gain for row in SUFFIX_BENCHMARK if row.concurrency == 1
    }
    assert alone["ARC"] > 0.3
    assert alone["ShareGPT"] > 0.3  # both are summarised as "20% to 30%"


@absent
def test_the_figures_above_are_the_guides():
    text = GUIDE.read_text(encoding="utf-8")
    assert re.search(r"\u03b1 = 0\.8.{0,3}K = 5.{0,3}t_d = t_t/10", text)
    assert float(re.findall(r"E\[accepted\] ≈ ([\d.]+) tokens", text)[0]) == ACCEPTED
    assert float(re.findall(r"= ([\d.]+)x", text)[0]) == SPEEDUP
    assert "\u03b1/(1-\u03b1)" in text
    assert "K=3-5" in text
    cost = COST_GUIDE.read_text(encoding="utf-8")
    assert float(re.findall(r"LLM.*?([\d.]+)倍左右", cost)[0]) == COST
    assert re.findall(r"投机步数设置为(\d)步.*生成(\d)个有效token.*提升了(\d+)%", cost) == [
        ("3", "3", "100")
    ]


@absent
def test_the_benchmark_rows_above_are_the_guides():
    stored = json.loads(TABLE.read_text())["rows"]
    assert len(stored) == len(SUFFIX_BENCHMARK) == 18
    for row, told in zip(SUFFIX_BENCHMARK, stored, strict=True):
        assert told.pop("num_speculative_tokens_max") == 3
        values = list(told.values())
        assert values[0] == row.dataset
        np.testing.assert_allclose(values[1:], row[1:])


def test_a_claim_needs_a_place():
    for args, said in (
        ((1.5, 3, 0.1), "alpha"),
        ((0.5, 0, 0.1), "K must"),
        ((0.5, 3, -1), "c must"),
    ):
        with pytest.raises(ValueError, match=said):
            theory.check_claim(*args, 2.0)
    with pytest.raises(ValueError, match="claimed"):
        theory.check_claim(0.5, 3, 0.1, -2.0)
