"""Calibration: which model the table supports, how surely, and the table replayed."""

import numpy as np
import pytest

from specjax.simulate import calibrate, fit_costs, replay
from specjax.theory.published import SUFFIX_BENCHMARK

GOALS = {"tpot": 0.040, "tps": 0.045}


@pytest.mark.parametrize("metric", GOALS)
def test_two_constants_predict_held_out_datasets_and_a_third_adds_nothing(metric):
    flat, linear, overhead = (
        calibrate(metric=metric, model=model, num_resamples=300)
        for model in ("flat", "linear", "overhead")
    )
    assert linear.lodo.mape <= GOALS[metric]
    assert linear.lodo.worst <= 0.10
    assert flat.lodo.mape > linear.lodo.mape
    assert overhead.lodo.mape > linear.lodo.mape
    assert overhead.h.low < 0 < overhead.h.high
    for found in (linear.mape, linear.d, linear.beta):
        assert found.low < found.estimate < found.high
    assert linear.beta.low > 0.002  # the gain does fall with concurrency
    assert linear.h == (0.0, 0.0, 0.0)
    assert (linear.model.d, linear.model.beta) == (linear.d.estimate, linear.beta.estimate)


@pytest.mark.parametrize("metric", GOALS)
def test_a_datasets_own_row_at_concurrency_1_helps(metric):
    given = calibrate(metric=metric, given_alone=True, num_resamples=50)
    assert given.lodo.mape <= 0.03
    assert given.lodo.worst <= 0.07


def test_the_bootstrap_is_over_datasets_and_repeats():
    once, again = (calibrate(num_resamples=50, seed=3) for _ in range(2))
    assert once.mape == again.mape
    alike = [
        row._replace(dataset=f"{row.dataset} {copy}") for row in SUFFIX_BENCHMARK for copy in "ab"
    ]
    twice = calibrate(alike, num_resamples=50)
    assert twice.d.high - twice.d.low < calibrate(num_resamples=50).d.high - once.d.low


def test_the_simulated_gain_falls_with_concurrency_in_all_six_datasets():
    found = replay(most_requests=3)
    for dataset in dict.fromkeys(row.dataset for row in SUFFIX_BENCHMARK):
        rows = [one for one in found if one.row.dataset == dataset]
        assert [one.row.concurrency for one in rows] == sorted(one.row.concurrency for one in rows)
        for gains in ([one.tpot_gain for one in rows], [one.tps_gain for one in rows]):
            assert gains == sorted(gains, reverse=True)
            assert gains[-1] > 1.1
    for one in found:
        measured = one.row.baseline_tpot_s / one.row.spec_tpot_s
        assert abs(one.tpot_gain / measured - 1) < 0.10
        assert abs(one.plain.tpot_request_mean_s / one.row.baseline_tpot_s - 1) < 0.10
        assert one.spec.acceptance_rate == pytest.approx(one.row.ratio, abs=0.04)


def test_free_drafts_would_not_lose_their_gain():
    costs, drafted = fit_costs()
    assert costs.t_tok > 1e-4
    rows = [row for row in SUFFIX_BENCHMARK if row.dataset == "SuperGLUE_BoolQ"]
    free = replay(rows, costs._replace(t_tok=0.0, t_prefill=0.0), drafted, most_requests=12)
    gains = np.array([one.tpot_gain for one in free])
    assert gains.max() - gains.min() < 0.08
    with pytest.raises(ValueError, match="model must be one of flat, linear, overhead"):
        calibrate(model="cubic")
