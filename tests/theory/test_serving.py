"""The model of the guide's table: two constants predict a dataset they never saw."""

import numpy as np
import pytest

from specjax import theory
from specjax.theory.published import SUFFIX_BENCHMARK

GOALS = {"tpot": 0.040, "tps": 0.045}


@pytest.mark.parametrize("metric", GOALS)
def test_a_held_out_dataset_is_predicted(metric):
    found = theory.lodo_error(SUFFIX_BENCHMARK, metric)
    assert len(found.errors) == 18
    assert found.mape <= GOALS[metric]
    assert found.worst <= 0.10
    measured = [row.spec_tpot_s if metric == "tpot" else row.spec_tps for row in SUFFIX_BENCHMARK]
    np.testing.assert_allclose(np.abs(np.array(found.predicted) / measured - 1), found.errors)


@pytest.mark.parametrize("metric", GOALS)
def test_with_its_row_at_concurrency_1_the_rest_is_predicted_better(metric):
    found = theory.lodo_error(SUFFIX_BENCHMARK, metric, given_alone=True)
    assert found.mape <= 0.03
    assert found.worst <= 0.07
    alone = [row.concurrency == 1 for row in SUFFIX_BENCHMARK]
    np.testing.assert_array_equal(np.isnan(found.predicted), alone)


def test_the_held_out_rows_do_not_enter_their_prediction():
    changed = [
        row._replace(spec_tpot_s=row.spec_tpot_s * 1.1, spec_tps=row.spec_tps / 1.1)
        if row.dataset == "ARC"
        else row
        for row in SUFFIX_BENCHMARK
    ]
    for metric in GOALS:
        before = theory.lodo_error(SUFFIX_BENCHMARK, metric).predicted
        after = theory.lodo_error(changed, metric).predicted
        same = [row.dataset == "ARC" for row in changed]
        np.testing.assert_array_equal(np.array(before)[same], np.array(after)[same])
        assert (np.array(before) != np.array(after))[~np.array(same)].all()


def test_the_fit_recovers_the_constants_of_a_table_that_has_them():
    rows = []
    for row in SUFFIX_BENCHMARK:
        gain = theory.serving_multiplier(row.ratio, row.concurrency, 1.7, 0.006)
        rows.append(
            row._replace(spec_tpot_s=row.baseline_tpot_s / gain, spec_tps=gain * row.baseline_tps)
        )
    for metric in GOALS:
        fit = theory.fit_serving_model(rows, metric)
        assert (fit.d, fit.beta, fit.h) == pytest.approx((1.7, 0.006, 0.0))
        assert theory.lodo_error(rows, metric).worst < 1e-9


def test_the_multiplier_is_tokens_over_cost():
    assert theory.serving_multiplier(0.3, 1, 1.5, 0.01) == pytest.approx(1.45)
    assert theory.serving_multiplier(0.3, 11, 1.5, 0.01, 0.1) == pytest.approx(1.45 / 1.2)
    fit = theory.fit_serving_model(SUFFIX_BENCHMARK)
    assert 1.3 < fit.d < 2.1
    assert 0.003 < fit.beta < 0.01


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: theory.serving_multiplier(1.5, 1, 1, 0), "a must be"),
        (lambda: theory.serving_multiplier(0.5, 0, 1, 0), "c must be"),
        (lambda: theory.lodo_error(SUFFIX_BENCHMARK[:3]), "number of datasets"),
        (lambda: theory.fit_serving_model(SUFFIX_BENCHMARK, "itl"), "metric must be"),
        (lambda: theory.lodo_error(SUFFIX_BENCHMARK[1:], given_alone=True), "no row at concurr"),
    ],
)
def test_impossible_tables_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
