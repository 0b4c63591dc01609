"""Metrics of a simulated run, with the benchmark tools' definitions."""

from typing import NamedTuple

import jax
import numpy as np

from specjax.simulate.serving import Served
from specjax.simulate.workload import Workload
from specjax.theory.arrays import Real, Value


class Metrics(NamedTuple):
    """The metrics of a run, or of a batch of runs with the same leading axes."""

    tpot_request_mean_s: (
        Value  # mean over requests of (last - first) / (tokens - 1): AISBench, vLLM
    )
    tpot_token_weighted_s: Value  # sum of (last - first) / sum of (tokens - 1)
    ttft_mean_s: Value
    e2el_mean_s: Value
    tps: Value  # output tokens / time to the end of the last request, ramp and drain included
    tps_steady: Value  # tokens / time while all clients' requests ran; NaN if they never did
    acceptance_rate: Value  # accepted / drafted; NaN if nothing was drafted
    acceptance_rate_per_pos: Value  # [..., K]: share of drafting rounds that accepted more than i
    mean_drafted: Value  # tokens drafted per round of a request
    tokens_per_step: Value  # 1 + accepted / rounds, before the text ends
    mean_concurrency: Value  # running requests, averaged over time
    little: Value  # request rate x latency since admission / mean concurrency: 1


def measure(served: Served, workload: Workload) -> Metrics:
    """Return the metrics of a run or of a batch of runs."""
    run = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), served)
    outputs = np.broadcast_to(np.asarray(workload.outputs, float), run.last.shape)
    decoding, after = run.last - run.first, outputs - 1
    several = after > 0
    tpot = np.where(several, decoding / np.maximum(after, 1), 0.0).sum(axis=-1)
    latency = (run.last - run.admitted).mean(axis=-1)
    concurrency = run.area / run.end
    return Metrics(
        tpot_request_mean_s=share(tpot, several.sum(axis=-1)),
        tpot_token_weighted_s=share(decoding.sum(axis=-1), after.sum(axis=-1)),
        ttft_mean_s=(run.first - run.issued).mean(axis=-1),
        e2el_mean_s=(run.last - run.issued).mean(axis=-1),
        tps=outputs.sum(axis=-1) / run.end,
        tps_steady=share(run.full_tokens, run.full_time),
        acceptance_rate=share(run.num_accepted, run.num_drafted),
        acceptance_rate_per_pos=share(run.accepted_per_pos, run.num_drafts[..., None]),
        mean_drafted=share(run.num_drafted, run.num_rounds),
        tokens_per_step=1.0 + share(run.num_accepted, run.num_rounds),
        mean_concurrency=concurrency,
        little=run.last.shape[-1] / run.end * latency / concurrency,
    )


def share(part: Real, whole: Real) -> Value:
    """Return a / b; NaN where b is 0."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), np.nan)[()]
