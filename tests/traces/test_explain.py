"""The budget adds up, names the term that was made guilty, and its predictions are theory's."""

import numpy as np
import pytest

from specjax import theory
from specjax.traces.explain import (
    Measured,
    Step,
    acceptance_from,
    explain,
    fit_costs,
    round_seconds,
    say,
)
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
        best = theory.optimal_k(alpha, d / 4, lambda k, v=v, h=h: 1 + v * k / 4 + h, 8)
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
    assert found.guilty in " ".join(say(found))
    assert say(found)[0].startswith("Slower" if found.speedup < 1 else "Faster")


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
    assert "Switch speculation off" in " ".join(say(found))


def test_a_log_measures_acceptance_and_rounds():
    trace = draw([0.7] * 20, 100)
    acceptance = acceptance_from(trace)
    assert 1 + acceptance.accepted == pytest.approx(trace.emitted[trace.rounds].mean())
    assert acceptance.tokens(2) == pytest.approx(1 + np.minimum(trace.accepted, 2).sum() / 2000)
    assert acceptance.tokens(8) == pytest.approx(theory.tokens_per_step(0.7, 8), rel=0.03)
    assert round_seconds(trace) == pytest.approx(0.05)
    found = explain(Measured(num_speculative_tokens=4), acceptance)
    assert found.speedup is None
    assert "was not measured" in say(found)[0]


def test_costs_fitted_to_rounds_of_two_batches_give_theorys_schedule():
    t0, t1, td = 0.02, 0.0004, 0.001
    steps = tuple(Step(b, k, t0 + t1 * b * (k + 1) + td * k) for b in (1, 8, 32) for k in (0, 2, 4))
    found = explain(measured(steps=steps), max_batch=64)
    np.testing.assert_allclose(found.costs[:3], [t0, t1, td], rtol=1e-6)
    assert found.costs.error < 1e-9
    wanted = theory.num_speculative_tokens_per_batch_size(0.8, t0, t1, td, 8, 64)
    assert found.schedule == wanted
    assert found.schedule[0][2] > found.schedule[-1][2]
    calm = explain(measured(steps=steps), max_batch=64, hysteresis=0.2).schedule
    assert len(calm) < len(wanted)
    alone = fit_costs(measured())
    assert alone.t0 + alone.t1 == pytest.approx(0.030)
    assert alone.t0 + 5 * alone.t1 + 4 * alone.td == pytest.approx(0.035)


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
