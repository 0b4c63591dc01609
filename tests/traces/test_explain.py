"""The budget adds up, names the term that was made guilty, and its predictions are theory's."""

import numpy as np
import pytest

from specjax import theory
from specjax.traces.explain import (
    Measured,
    acceptance_from,
    explain,
    round_seconds,
    to_sentences,
)
from specjax.traces.measured_schedule import Step
from tests.traces.synthetic import draw

FAST = {"plain_s": 0.030, "draft_s": 0.003, "verify_s": 0.031, "round_s": 0.035}


def measured(**changes):
    return Measured(**{"num_speculative_tokens": 4, "alpha": 0.8, **FAST, **changes})


def test_the_budget_adds_up_to_leviathans_speedup():
    found = explain(measured())
    assert found.round_cost == pytest.approx(35 / 30)
    assert 1 + found.draft + found.verify + found.overhead == pytest.approx(found.round_cost)
    assert sum(found.blame.values()) == pytest.approx(found.round_cost - 1)
    wanted = theory.speedup(0.8, 4, found.draft / 4, 1 + found.verify, found.overhead)
    assert found.speedup == pytest.approx(wanted)
    at = theory.speedup(found.breakeven_alpha, 4, found.draft / 4, 1 + found.verify, found.overhead)
    assert at == pytest.approx(1)


def test_best_k_is_theorys_optimum_under_costs_linear_in_k():
    for alpha in (0.2, 0.5, 0.8, 0.95):
        found = explain(measured(alpha=alpha, draft_s=0.02, round_s=0.055))
        d, v, h = found.draft, found.verify, found.overhead
        best = theory.optimal_k(alpha, d / 4, lambda k, v=v, h=h: 1 + v * k / 4 + h, 4)
        assert found.best_k == best


@pytest.mark.parametrize(
    ("changes", "guilty"),
    [
        ({"alpha": 0.05}, "acceptance"),
        ({"draft_s": 0.1, "round_s": 0.135, "alpha": 0.9}, "draft"),
        ({"verify_s": 0.12, "round_s": 0.125, "alpha": 0.9}, "verify"),
        ({"round_s": 0.12}, "overhead"),
        ({"round_s": 0.12, "draft_s": None, "verify_s": None, "alpha": 0.95}, "cost"),
    ],
)
def test_the_term_that_was_made_guilty_is_named(changes, guilty):
    found = explain(measured(**changes))
    assert found.guilty == guilty
    assert found.remedy
    assert found.guilty in " ".join(to_sentences(found))
    assert to_sentences(found)[0].startswith("Slower" if found.speedup < 1 else "Faster")


def test_texts_follow_magnitudes():
    """0.40 of 0.93 is not "most of the cost"; a small cost of a fast server needs no remedy."""
    some = to_sentences(explain(measured(alpha=0.6, draft_s=0.02, verify_s=0.035, round_s=0.058)))
    assert "most" not in some[1].lower()
    fast = to_sentences(explain(measured(alpha=0.9)))
    assert fast[1].startswith("The largest cost: ")
    assert fast[1].endswith("There is little to gain.")


def test_the_same_acceptance_by_three_names():
    tokens = float(theory.tokens_per_step(0.8, 4))
    rate = float(theory.draft_acceptance_ratio(0.8, 4))
    for name, value in (("tokens_per_round", tokens), ("acceptance_rate", rate)):
        found = explain(measured(**{"alpha": None, name: value}))
        assert found.alpha == pytest.approx(0.8)
        assert found.tokens_per_round == pytest.approx(tokens)
    half = explain(measured(alpha=None, acceptance_rate=rate, mean_drafted=2.0))
    assert half.alpha == pytest.approx(0.8)
    assert half.tokens_per_round == pytest.approx(1 + 2 * rate)


def test_where_nothing_can_pay_it_says_so():
    found = explain(measured(draft_s=0.2, round_s=0.25, alpha=0.99))
    assert found.breakeven_alpha is None
    assert found.best_k == 0
    assert "Switch speculation off" in " ".join(to_sentences(found))


def test_a_log_measures_acceptance_and_rounds():
    trace = draw([0.7] * 20, 100)
    acceptance = acceptance_from(trace)
    assert 1 + acceptance.accepted == pytest.approx(trace.emitted[trace.rounds].mean())
    assert acceptance.tokens(2) == pytest.approx(1 + np.minimum(trace.accepted, 2).sum() / 2000)
    assert acceptance.tokens(8) == pytest.approx(theory.tokens_per_step(0.7, 8), rel=0.03)
    assert round_seconds(trace) == pytest.approx(0.05)
    found = explain(Measured(num_speculative_tokens=4), acceptance)
    assert found.speedup is None
    assert "was not measured" in to_sentences(found)[0]


def test_no_schedule_beyond_what_was_measured():
    """Qwen3-32B on an H200 from batch 1 alone: verifying is free there, and 0.35x at 256."""
    alone = explain(measured(num_speculative_tokens=3, alpha=0.7, verify_s=0.030))
    assert alone.schedule is None
    assert "This holds at batch size 1. No schedule" in to_sentences(alone)[-1]
    steps = tuple(
        Step(b, k, 0.02 + 0.0004 * b * (k + 1) + 0.001 * k) for b in (1, 32) for k in (0, 4)
    )
    found = explain(measured(steps=steps))
    assert found.schedule is not None
    assert found.schedule[0][0] == 1
    assert found.schedule[-1][1] == 32
    assert "up to batch size 32" in to_sentences(found)[-1]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "needs num_speculative_tokens"),
        ({"k": 4}, "unknown key 'k' of a measurement. Valid: num_speculative_tokens, plain_s"),
        ({"num_speculative_tokens": 4, "plain_s": "fast"}, "plain_s must be a number, got 'fast'"),
        ({"num_speculative_tokens": 4.5}, "must be a whole number, got 4.5"),
        ({"num_speculative_tokens": 4, "plain_s": -1}, "plain_s must be at least"),
        ({"num_speculative_tokens": 4, "alpha": 0.5, "acceptance_rate": 0.2}, "give one of"),
        ({"num_speculative_tokens": 4, "alpha": 1.5}, r"alpha must be in \[0, 1\], got 1.5"),
        ({"num_speculative_tokens": 2, "tokens_per_round": 4}, r"must be in \[1, 3\], got 4"),
        ({"num_speculative_tokens": 2, "steps": [1]}, "steps must be a list of objects with"),
    ],
)
def test_wrong_measurements_are_refused(values, said):
    with pytest.raises(ValueError, match=said):
        Measured.from_dict(values)


def test_acceptance_has_to_come_from_somewhere():
    with pytest.raises(ValueError, match="Give a log or one of tokens_per_round"):
        explain(Measured(num_speculative_tokens=4, plain_s=1.0))
