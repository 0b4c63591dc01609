"""What a log says about acceptance, against the laws it was drawn from."""

import numpy as np
import pytest

from specjax import theory
from specjax.traces import (
    Event,
    alarms,
    alpha,
    by_position,
    convert,
    counters,
    fit_beta,
    fit_markov,
    fit_mixture,
    to_aisbench,
    to_trace,
    tokens_by_k,
)
from tests.traces.synthetic import draw

IID = draw([0.7] * 40, 100)


def test_censoring_finds_alpha_where_accepted_over_drafted_does_not():
    found = alpha(IID)
    assert found.low < 0.7 < found.high
    ratio = IID.accepted.sum() / IID.drafted.sum()
    assert ratio == pytest.approx(theory.draft_acceptance_ratio(0.7, 4), abs=0.02)
    assert abs(found.estimate - 0.7) < 0.02 < 0.7 - ratio


def test_positions_of_one_alpha_are_alike_given_that_they_were_judged():
    found = by_position(IID)
    assert (found.conditional.low < 0.7).all()
    assert (found.conditional.high > 0.7).all()
    np.testing.assert_allclose(found.marginal.estimate, found.survival)
    np.testing.assert_array_equal(found.judged[1:], found.accepted[:-1])
    widths = found.conditional.high - found.conditional.low
    assert (np.diff(widths) > 0).all()
    rates = counters(IID).acceptance_rate_per_pos
    np.testing.assert_allclose(found.marginal.estimate, rates)


def test_short_drafts_lower_the_marginal_but_not_the_survival():
    events = [Event("0", 0, 0, 0, 1, 0.0)]
    for step in range(1, 401):
        drafted = 1 if step % 2 else 4
        accepted = drafted if step % 4 < 2 else 0
        events.append(Event("0", step, drafted, accepted, accepted + 1, float(step)))
    found = by_position(to_trace(events))
    np.testing.assert_allclose(found.survival, 0.5)
    np.testing.assert_allclose(found.marginal.estimate, [0.5, 0.25, 0.25, 0.25])
    np.testing.assert_array_equal(found.drafted, [400, 200, 200, 200])


def test_intervals_take_requests_not_tokens_as_independent():
    unlike = draw([0.2, 0.9] * 10, 100)
    plain = theory.acceptance_ci(unlike.accepted.sum(), unlike.drafted.sum())
    found = {number.name: number for number in convert(unlike)}["acceptance rate"]
    assert found.high - found.low > 5 * (plain.high - plain.low)


def test_fits_find_what_the_log_was_drawn_from():
    beta = fit_beta(draw([0.0] * 20, 500, beta=(2.0, 1.0)))
    assert beta.a == pytest.approx(2, rel=0.1)
    assert beta.b == pytest.approx(1, rel=0.1)
    mixed = fit_mixture(draw([0.3] * 30 + [0.9] * 10, 100))
    np.testing.assert_allclose(mixed.alphas, [0.3, 0.9], atol=0.02)
    tokens = np.array([30, 10]) * theory.tokens_per_step(np.array([0.3, 0.9]), 4)
    np.testing.assert_allclose(mixed.shares, tokens / tokens.sum(), atol=0.02)
    markov = fit_markov(IID)
    np.testing.assert_allclose(markov, 0.7, atol=0.03)


def markov_log(after_recovered, after_bonus, after_accepted, depth, num_rounds, seed=0):
    random, events, bonus = np.random.default_rng(seed), [Event("0", 0, 0, 0, 1, 0.0)], False
    for step in range(1, num_rounds + 1):
        first = after_bonus if bonus else after_recovered
        chances = [first] + [after_accepted] * (depth - 1)
        accepted = int(np.append(random.random(depth) < chances, False).argmin())
        bonus = accepted == depth
        events.append(Event("0", step, depth, accepted, accepted + 1, float(step)))
    return to_trace(events)


@pytest.mark.parametrize("depth", [2, 6])
def test_a_markov_fit_predicts_another_k_where_one_alpha_does_not(depth):
    chances = (0.3, 0.8, 0.95)
    fitted = fit_markov(markov_log(*chances, 3, 20_000))
    np.testing.assert_allclose(fitted, chances, atol=0.02)
    other = markov_log(*chances, depth, 20_000, seed=1)
    measured = 1 + other.accepted.sum() / other.rounds.sum()
    assert fitted.tokens(depth) == pytest.approx(measured, rel=0.015)
    one = theory.tokens_per_step(alpha(markov_log(*chances, 3, 20_000)).estimate, depth)
    assert one != pytest.approx(measured, rel=0.03)
    assert fitted.tokens(0) == 1.0


def test_all_models_agree_on_a_log_of_one_alpha():
    found = tokens_by_k(IID, [0, 1, 4, 8])
    expected = theory.tokens_per_step(0.7, np.array(found.ks))
    for model in (found.one_alpha, found.beta, found.mixture, found.markov):
        np.testing.assert_allclose(model, expected, rtol=0.05)
    np.testing.assert_allclose(found.truncated[:3], expected[:3], rtol=0.03)
    assert np.isnan(found.truncated[3])


def test_the_tools_numbers_are_their_definitions():
    trace = to_trace(
        [
            Event("a", 0, 0, 0, 1, 1.0),
            Event("a", 1, 2, 2, 3, 2.0),
            Event("a", 2, 2, 1, 2, 4.0),
            Event("b", 0, 0, 0, 1, 2.0),
            Event("b", 1, 0, 0, 1, 3.0),
            Event("b", 2, 2, 2, 1, 5.0),
        ]
    )
    said = {(number.tool, number.name): number.value for number in convert(trace)}
    assert said["vLLM", "acceptance rate"] == pytest.approx(5 / 6)
    assert said["vLLM", "mean acceptance length"] == pytest.approx(1 + 5 / 3)
    assert said["vLLM", "acceptance rate at position 1"] == pytest.approx(2 / 3)
    assert said["SGLang", "spec_accept_length"] == pytest.approx((5 + 4) / 4)
    assert said["SGLang", "spec_accept_rate"] == pytest.approx(5 / 6)
    assert said["SGLang", "spec_accept_rate with its own token"] == pytest.approx(9 / 10)
    assert said["EAGLE", "tau"] == pytest.approx((3 + 2 + 1 + 1) / 4)
    assert said["EAGLE", "0-alpha"] == pytest.approx(1.0)
    assert said["EAGLE", "1-alpha"] == pytest.approx(2 / 3)
    assert said["theory", "alpha"] == pytest.approx(5 / 6)
    assert said["AISBench", "TTFT"] == pytest.approx(1.5)
    assert said["AISBench", "TPOT"] == pytest.approx((3 / 5 + 3 / 2) / 2)
    assert said["AISBench", "ITL"] == pytest.approx((1 + 2 + 1 + 2) / 4)
    assert said["AISBench", "OutputTokenThroughput"] == pytest.approx(9 / 5)
    for number in convert(trace):
        assert number.says
        assert not number.low > number.value + 1e-12
        assert not number.high < number.value - 1e-12


def test_a_log_of_single_tokens_has_no_tpot():
    numbers = to_aisbench(to_trace([Event("a", 0, 0, 0, 1, 2.0)]))
    assert [number.name for number in numbers] == ["TTFT", "OutputTokenThroughput"]


def test_the_alarm_rings_for_what_is_wrong_and_else_is_silent():
    assert alarms(IID) == ()
    assert alarms(draw([0.9, 0.2] * 10, 50)) == ()  # unlike requests are no fault
    assert [one.name for one in alarms(draw([0.005] * 10, 50))] == ["acceptance near zero"]
    assert [one.name for one in alarms(draw([0.8] * 10, 100, decay=0.8))] == ["acceptance decays"]
    assert alarms(draw([0.8] * 3, 100, decay=0.8)) == ()  # too few requests to be sure
    plain = to_trace([Event("a", 0, 0, 0, 1, 0.0), Event("a", 1, 0, 0, 1, 1.0)])
    assert [one.name for one in alarms(plain)] == ["nothing drafted"]


def test_false_alarms_are_rare():
    rung = sum(bool(alarms(draw([0.6] * 8, 60, seed=seed))) for seed in range(60))
    assert rung <= 3
