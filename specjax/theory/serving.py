"""The gain of speculation on a server under load: a model of two constants, and its errors.

Fitted to tables such as ``published.SUFFIX_BENCHMARK``: datasets at several concurrencies with
their acceptance ratio. TPOT and TPS are fitted apart, each from its own column: their gains
differ (requests are weighted differently) and must not be derived from one another.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specjax.theory.arrays import Real, Value, arrays, require, require_costs, require_probs
from specjax.theory.published import BenchmarkRow

METRICS = ("tpot", "tps")


class ServingModel(NamedTuple):
    """Constants of ``serving_multiplier`` for one metric."""

    metric: str  # "tpot" or "tps"
    d: float  # drafted tokens per step
    beta: float  # cost of verifying them, per further request, in steps of one request
    h: float = 0.0  # fixed overhead, in steps of one request


class LodoError(NamedTuple):
    """Prediction errors on rows whose dataset was left out of the fit."""

    metric: str
    predicted: tuple[float, ...]  # of each row, in its unit (s, or tok/s); NaN: not predicted
    errors: tuple[float, ...]  # |predicted / measured - 1|
    mape: float  # their mean
    worst: float


def serving_multiplier(a: Real, c: Real, d: Real, beta: Real, h: Real = 0.0) -> Value:
    """Return (1 + d a) / (1 + h + beta (c - 1)), the speedup over plain decoding at equal load.

    Leviathan et al. 2023 (arXiv 2211.17192), Thm 3.8, as two measured constants; ours.
    ``a`` accepted per drafted token, ``c`` concurrent requests, ``d`` drafted tokens per step:
    a step brings 1 + d a tokens and costs a share more that grows with the batch, since drafted
    tokens of other requests are verified along. Broadcasts; differentiable.
    Raises ValueError for a outside [0, 1], c < 1 or a negative constant.
    """
    require_probs(a=a)
    require("c", c, 1)
    require_costs(d=d, h=h)
    _, a, c, d, beta, h = arrays(a, c, d, beta, h)
    return ((1.0 + d * a) / (1.0 + h + beta * (c - 1.0)))[()]


def gains(rows: Sequence[BenchmarkRow], metric: str) -> Value:
    """Return the measured multipliers: baseline TPOT / spec TPOT, or spec TPS / baseline TPS."""
    if metric == "tpot":
        return np.array([row.baseline_tpot_s / row.spec_tpot_s for row in rows])
    if metric == "tps":
        return np.array([row.spec_tps / row.baseline_tps for row in rows])
    raise ValueError(f"metric must be 'tpot' or 'tps', got {metric!r}")


def fit_serving_model(
    rows: Sequence[BenchmarkRow],
    metric: str = "tpot",
    constants: tuple[str, ...] = ("d", "beta"),
) -> ServingModel:
    """Return the named constants fitted to the rows by linear least squares; the others are 0.

    Legendre 1805 (least squares).
    g (1 + h + beta (c - 1)) = 1 + d a is linear in d, beta and h; divided by the measured gain g,
    the residuals are relative errors. One solution, no start values.
    Raises ValueError for fewer rows than constants, another metric or constant.
    """
    if not constants or not set(constants) <= {"d", "beta", "h"}:
        raise ValueError(f"constants must be of d, beta and h, got {constants}")
    require("the number of rows", len(rows), len(constants))
    g = gains(rows, metric)
    columns = {
        "d": np.array([row.ratio for row in rows]) / g,
        "beta": np.array([1.0 - row.concurrency for row in rows]),
        "h": -np.ones(len(rows)),
    }
    system = np.stack([columns[name] for name in constants], axis=1)
    found, *_ = np.linalg.lstsq(system, 1.0 - 1.0 / g, rcond=None)
    fitted = dict(zip(constants, found.tolist(), strict=True))
    return ServingModel(metric, *(fitted.get(name, 0.0) for name in ("d", "beta", "h")))


def model_gains(model: ServingModel, rows: Sequence[BenchmarkRow]) -> Value:
    """Return the multiplier that a fitted model predicts for each row."""
    a = np.array([row.ratio for row in rows])
    c = np.array([row.concurrency for row in rows])
    return (1.0 + model.d * a) / (1.0 + model.h + model.beta * (c - 1.0))


def fit_beta(rows: Sequence[BenchmarkRow], metric: str) -> float:
    """Return beta fitted to each dataset's decrease from its own row at concurrency 1."""
    alone = given_gains(rows, metric)
    others = np.array([row.concurrency - 1.0 for row in rows])
    return float(others @ (alone / gains(rows, metric) - 1.0) / (others @ others))


def given_gains(rows: Sequence[BenchmarkRow], metric: str) -> Value:
    """Return for each row the measured gain of its dataset at concurrency 1."""
    alone = {
        row.dataset: gain
        for row, gain in zip(rows, gains(rows, metric), strict=True)
        if row.concurrency == 1
    }
    missing = {row.dataset for row in rows} - set(alone)
    if missing:
        raise ValueError(f"no row at concurrency 1 for {', '.join(sorted(missing))}")
    return np.array([alone[row.dataset] for row in rows])


def lodo_error(
    rows: Sequence[BenchmarkRow],
    metric: str = "tpot",
    given_alone: bool = False,
    constants: tuple[str, ...] = ("d", "beta"),
) -> LodoError:
    """Return the errors of predicting each dataset's rows from a fit to the other datasets.

    Stone 1974 (cross-validation).
    A held-out dataset contributes its acceptance ratio and its plain measurements only.
    ``given_alone`` gives its row at concurrency 1 too, in the place of d; then the rows at higher
    concurrency are predicted and judged, and only beta is fitted.
    Raises ValueError for fewer than two datasets.
    """
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    require("the number of datasets", len(datasets), 2)
    measured = gains(rows, metric)
    predicted = np.full(len(rows), np.nan)
    for dataset in datasets:
        held = np.array([row.dataset == dataset for row in rows])
        seen = [row for row in rows if row.dataset != dataset]
        out = [row for row in rows if row.dataset == dataset]
        c = np.array([row.concurrency for row in out], float)
        if given_alone:
            gain = given_gains(out, metric) / (1.0 + fit_beta(seen, metric) * (c - 1.0))
            gain = np.where(c > 1, gain, np.nan)
        else:
            gain = model_gains(fit_serving_model(seen, metric, constants), out)
        predicted[held] = gain
    if metric == "tpot":
        values = np.array([row.baseline_tpot_s for row in rows]) / predicted
        errors = np.abs(measured / predicted - 1.0)
    else:
        values = np.array([row.baseline_tps for row in rows]) * predicted
        errors = np.abs(predicted / measured - 1.0)
    return LodoError(
        metric,
        tuple(values.tolist()),
        tuple(errors.tolist()),
        float(np.nanmean(errors)),
        float(np.nanmax(errors)),
    )
