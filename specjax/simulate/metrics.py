"""Metrics of a simulated run, with the benchmark tools' definitions."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from specjax.simulate.serving import Served
from specjax.simulate.workload import Workload
from specjax.theory.arrays import Real, Scalar, Value, require_costs, require_probs


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
    each = latencies(served, workload)
    latency = (run.last - run.admitted).mean(axis=-1)
    concurrency = run.area / run.end
    return Metrics(
        tpot_request_mean_s=share(each.tpot.sum(axis=-1), (after > 0).sum(axis=-1)),
        tpot_token_weighted_s=share(decoding.sum(axis=-1), after.sum(axis=-1)),
        ttft_mean_s=each.ttft.mean(axis=-1),
        e2el_mean_s=each.e2el.mean(axis=-1),
        tps=outputs.sum(axis=-1) / run.end,
        tps_steady=share(run.full_tokens, run.full_time),
        acceptance_rate=share(run.num_accepted, run.num_drafted),
        acceptance_rate_per_pos=share(run.accepted_per_pos, run.num_drafts[..., None]),
        mean_drafted=share(run.num_drafted, run.num_rounds),
        tokens_per_step=1.0 + share(run.num_accepted, run.num_rounds),
        mean_concurrency=concurrency,
        little=run.last.shape[-1] / run.end * latency / concurrency,
    )


class Latencies(NamedTuple):
    """Each request's latencies in seconds, [..., N]: what an objective may bound."""

    ttft: Value  # from when the client sent it to its first token
    tpot: Value  # (last - first) / (tokens - 1); 0 for a single token
    e2el: Value  # from when the client sent it to its last token


def latencies(served: Served, workload: Workload) -> Latencies:
    """Return the latencies of each request of a run or of a batch of runs."""
    issued, first, last = (
        np.asarray(one, np.float64) for one in (served.issued, served.first, served.last)
    )
    after = np.broadcast_to(np.asarray(workload.outputs, float), last.shape) - 1
    decoding = np.where(after > 0, (last - first) / np.maximum(after, 1), 0.0)
    return Latencies(first - issued, decoding, last - issued)


def latency_quantiles(served: Served, workload: Workload, quantiles: Real) -> Latencies:
    """Return the quantiles [Q, ...] over a run's requests of each latency, in seconds.

    Raises ValueError for a quantile outside [0, 1].
    """
    require_probs(quantiles=quantiles)
    each = latencies(served, workload)
    return Latencies(*(np.quantile(one, quantiles, axis=-1) for one in each))


def slo_goodput(served: Served, workload: Workload, slo: Mapping[str, Scalar]) -> Value:
    """Return the requests per second that meet every objective, as ``vllm bench serve`` counts.

    Zhong et al. 2024 (arXiv 2401.09670). ``slo``: the most seconds of "ttft", "tpot" or "e2el".

    Raises ValueError for another objective or a negative one.
    """
    unknown = slo.keys() - set(Latencies._fields)
    if unknown:
        raise ValueError(f"slo names {sorted(unknown)}; valid: {', '.join(Latencies._fields)}")
    require_costs(**slo)
    each = latencies(served, workload)._asdict()
    good = np.all([each[name] <= most for name, most in slo.items()], axis=0)
    return (np.broadcast_to(good, each["e2el"].shape).sum(axis=-1) / np.asarray(served.end))[()]


def share(part: Real, whole: Real) -> Value:
    """Return a / b; NaN where b is 0."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), np.nan)[()]
