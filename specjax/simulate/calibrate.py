"""Fit cost models to a benchmark's table, with errors on data left out of the fit.

Errors are leave-one-dataset-out: a dataset's rows are predicted by constants fitted to the others.
Rows of one dataset are correlated, so intervals come from resampling datasets.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import default_rng

from specjax.simulate.serving import Costs
from specjax.theory.arrays import Scalar
from specjax.theory.intervals import Interval
from specjax.theory.published import SUFFIX_BENCHMARK, BenchmarkRow
from specjax.theory.serving import LodoError, ServingModel, fit_serving_model, lodo_error

MODELS = {  # which constants of theory.serving_multiplier are fitted
    "flat": ("d",),  # drafted tokens cost nothing
    "linear": ("d", "beta"),  # they cost more, the more requests run
    "overhead": ("d", "beta", "h"),  # and something even alone
}


class Calibration(NamedTuple):
    """A fitted model of one metric, and its error on datasets it has not seen."""

    name: str
    model: ServingModel  # fitted to all rows
    lodo: LodoError
    mape: Interval  # of ``lodo.mape``, over datasets
    d: Interval
    beta: Interval
    h: Interval


def calibrate(
    rows: Sequence[BenchmarkRow] = SUFFIX_BENCHMARK,
    metric: str = "tpot",
    model: str = "linear",
    *,
    given_alone: bool = False,
    num_resamples: int = 1000,
    level: Scalar = 0.95,
    seed: int = 0,
) -> Calibration:
    """Return one of ``MODELS`` fitted to a table's TPOT or TPS, with a bootstrap over datasets.

    ``given_alone``: a held-out dataset's row at concurrency 1 is known, as in
    ``theory.lodo_error``. The interval of the error resamples the held-out datasets' errors; that
    of a constant refits it to resampled datasets (Efron 1979, percentiles).
    Raises ValueError for another metric or model, or fewer than two datasets.
    """
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    constants = MODELS[model]
    lodo = lodo_error(rows, metric, given_alone, constants)
    names = list(dict.fromkeys(row.dataset for row in rows))
    groups = [[i for i, row in enumerate(rows) if row.dataset == name] for name in names]
    errors = np.array([np.nanmean([lodo.errors[i] for i in group]) for group in groups])
    fitted = fit_serving_model(rows, metric, constants)
    draws = default_rng(seed).integers(0, len(groups), (num_resamples, len(groups)))
    refits = np.array(
        [
            fit_serving_model([rows[i] for g in draw for i in groups[g]], metric, constants)[1:]
            for draw in draws.tolist()
        ]
    )
    tails = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(refits, tails, axis=0)
    constants_of = [Interval(*map(float, one)) for one in zip(fitted[1:], low, high, strict=True)]
    spread = np.quantile(errors[draws].mean(axis=1), tails)
    return Calibration(
        model, fitted, lodo, Interval(lodo.mape, float(spread[0]), float(spread[1])), *constants_of
    )


def fit_costs(
    rows: Sequence[BenchmarkRow] = SUFFIX_BENCHMARK, t_prefill: Scalar = 1e-4
) -> tuple[Costs, float]:
    """Return the simulator's costs fitted to a table, and the drafted tokens per step d.

    t0 and t1 are the line through the plain TPOTs against concurrency; d is the calibrated
    model's, and t_tok what a drafted token must cost for the speculative TPOTs:
    (1 + d a) TPOT = plain TPOT + t_tok d c. The table says nothing about prefill: ``t_prefill``
    is assumed [s/token].
    """
    c = np.array([row.concurrency for row in rows], float)
    plain = np.array([row.baseline_tpot_s for row in rows])
    (t0, t1), *_ = np.linalg.lstsq(np.stack([np.ones_like(c), c], axis=1), plain, rcond=None)
    d = fit_serving_model(rows, "tpot").d
    step = np.array([(1 + d * row.ratio) * row.spec_tpot_s for row in rows])
    t_tok = float((step - plain) @ (d * c) / (d * c @ (d * c)))
    return Costs(float(t0), float(t1), t_tok=max(t_tok, 0.0), t_prefill=t_prefill), d
