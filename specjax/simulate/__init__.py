"""Simulations: the shipped round on toy chains, a server under load, and fits to tables."""

from specjax.simulate.adaptive import Phase, Throughput, under_load
from specjax.simulate.calibrate import Calibration, calibrate, fit_costs
from specjax.simulate.chain import Counts, Pair, chain, correlated_pair, exact_tokens_per_step
from specjax.simulate.metrics import (
    Latencies,
    Metrics,
    latencies,
    latency_quantiles,
    measure,
    slo_goodput,
)
from specjax.simulate.policy import Policy, by_schedule, fixed_k, off_above
from specjax.simulate.replay import Replayed, replay
from specjax.simulate.serving import Costs, Served, serving
from specjax.simulate.workload import Workload, closed_loop, open_loop

__all__ = [
    "Calibration",
    "Costs",
    "Counts",
    "Latencies",
    "Metrics",
    "Pair",
    "Phase",
    "Policy",
    "Replayed",
    "Served",
    "Throughput",
    "Workload",
    "by_schedule",
    "calibrate",
    "chain",
    "closed_loop",
    "correlated_pair",
    "exact_tokens_per_step",
    "fit_costs",
    "fixed_k",
    "latencies",
    "latency_quantiles",
    "measure",
    "off_above",
    "open_loop",
    "replay",
    "serving",
    "slo_goodput",
    "under_load",
]
