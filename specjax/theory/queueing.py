"""Queueing: the load and latency of a server, without and with speculation.

Rates in requests/s, times in s, lengths in tokens. Little 1961; Pollaczek 1930, Khinchine 1932.
"""

from typing import NamedTuple

from specjax.theory.arrays import Real, Value, arrays, library_of, require, require_costs


class MemoryImpact(NamedTuple):
    """The tokens of context that fit beside the weights, without and with a draft model."""

    plain_tokens: Value
    spec_tokens: Value
    ratio: Value  # spec / plain: what the largest batch is multiplied with


def little_ratio(concurrency: Real, rate: Real, latency: Real) -> Value:
    """Return rate x latency / concurrency: 1 in any closed account of a stable system.

    Little 1961.
    Little's law L = lambda W. Far from 1: the three numbers are not of the same run, or the
    concurrency was not kept up. Raises ValueError for negative arguments or concurrency 0.
    """
    require("concurrency", concurrency, 1e-300)
    require_costs(rate=rate, latency=latency)
    _, concurrency, rate, latency = arrays(concurrency, rate, latency)
    return (rate * latency / concurrency)[()]


def effective_batch(rps: Real, n: Real, tpot: Real) -> Value:
    """Return rps x n x tpot, the requests decoding at a time when each emits n tokens.

    Little 1961.
    Little's law for the decoding phase. Raises ValueError for negative arguments.
    """
    require_costs(rps=rps, n=n, tpot=tpot)
    _, rps, n, tpot = arrays(rps, n, tpot)
    return (rps * n * tpot)[()]


def latency_vs_rps(rps: Real, n: Real, tokens: Real, s0: Real, s1: Real) -> Value:
    """Return the mean seconds a request of n tokens decodes in, at ``rps`` requests/s.

    Little 1961, with a time per token that grows linearly with the batch.
    A step of B requests takes s0 + s1 B seconds and brings each ``tokens`` tokens, so
    W = m (s0 + s1 B), m = n / tokens, with B = rps W by Little's law: W = m s0 / (1 - rps m s1).
    Mean-field: no queue, B at its mean. Infinite at and past ``saturation_rps``.
    Raises ValueError for negative arguments or tokens < 1.
    """
    require("tokens", tokens, 1)
    require_costs(rps=rps, n=n, s0=s0, s1=s1)
    xp, rps, n, tokens, s0, s1 = arrays(rps, n, tokens, s0, s1)
    steps = n / tokens
    idle = 1.0 - rps * steps * s1
    return xp.where(idle > 0, steps * s0 / xp.where(idle > 0, idle, 1.0), xp.inf)[()]


def saturation_rps(n: Real, tokens: Real, s1: Real) -> Value:
    """Return tokens / (n s1), the largest request rate that any batch size can serve.

    The limit of ``latency_vs_rps`` (Little 1961).
    The limit of B / W as B grows, see ``latency_vs_rps``; infinite where s1 = 0.
    Raises ValueError for n not positive, tokens < 1 or s1 < 0.
    """
    require("tokens", tokens, 1)
    require("n", n, 1)
    require_costs(s1=s1)
    xp, n, tokens, s1 = arrays(n, tokens, s1)
    return xp.where(s1 > 0, tokens / (n * xp.where(s1 > 0, s1, 1.0)), xp.inf)[()]


def mg1_ps(rps: Real, service: Real) -> Value:
    """Return S / (1 - rho), the mean latency of an M/G/1 queue that shares its processor.

    Kleinrock 1976, sec. 4.4.
    rho = rps x S. Insensitive to the distribution of service times: only the mean S enters. A
    server whose step time is proportional to its batch is one. Infinite for rho >= 1.
    Raises ValueError for negative arguments.
    """
    require_costs(rps=rps, service=service)
    xp, rps, service = arrays(rps, service)
    idle = 1.0 - rps * service
    return xp.where(idle > 0, service / xp.where(idle > 0, idle, 1.0), xp.inf)[()]


def mg1_fcfs(rps: Real, service: Real, second_moment: Real) -> Value:
    """Return S + rps E[S^2] / (2 (1 - rho)), the mean latency of an M/G/1 first-come queue.

    Pollaczek 1930 and Khinchin 1932.
    Pollaczek-Khinchine: one request at a time, so long ones delay the others. Infinite for
    rho = rps x S >= 1. Raises ValueError for negative arguments or E[S^2] < S^2.
    """
    require_costs(rps=rps, service=service)
    xp, rps, service, second = arrays(rps, service, second_moment)
    require("E[S^2] - S^2", second - service**2, -1e-9)
    idle = 1.0 - rps * service
    wait = rps * second / (2.0 * xp.where(idle > 0, idle, 1.0))
    return xp.where(idle > 0, service + wait, xp.inf)[()]


def e2e_speedup(ttft: Real, n: Real, tpot0: Real, tpot1: Real) -> Value:
    """Return (ttft + (n - 1) tpot0) / (ttft + (n - 1) tpot1): prefill is not sped up.

    Amdahl 1967, with the prefill as the part that stays.
    Amdahl's law for a request of n tokens; ``tpot0`` plain, ``tpot1`` speculative [s/token].
    Tends to tpot0 / tpot1 for long answers. Raises ValueError for negative times, n < 1 or a
    request that takes no time.
    """
    require_costs(ttft=ttft, tpot0=tpot0, tpot1=tpot1)
    require("n", n, 1)
    _, ttft, n, tpot0, tpot1 = arrays(ttft, n, tpot0, tpot1)
    after = ttft + (n - 1.0) * tpot1
    require("the speculative latency", after, 1e-300)
    return ((ttft + (n - 1.0) * tpot0) / after)[()]


def draft_memory_impact(
    memory: Real, weights: Real, kv: Real, draft_weights: Real, draft_kv: Real
) -> MemoryImpact:
    """Return how many tokens of context fit, and what a draft's weights and cache take of them.

    By counting bytes.
    plain = (memory - weights) / kv, spec = (memory - weights - draft_weights) / (kv + draft_kv);
    bytes, and bytes per token of context. Where memory binds, the largest batch falls by the
    ratio, which is part of the price of speculation.
    Raises ValueError for negative arguments, kv = 0, or weights that do not fit.
    """
    require_costs(weights=weights, draft_weights=draft_weights, draft_kv=draft_kv)
    require("kv", kv, 1e-300)
    xp = library_of(memory, weights, kv, draft_weights, draft_kv)
    _, memory, weights, kv, more, draft_kv = arrays(memory, weights, kv, draft_weights, draft_kv)
    require("memory left beside the weights", memory - weights, 1e-300)
    plain = (memory - weights) / kv
    spec = xp.maximum(memory - weights - more, 0.0) / (kv + draft_kv)
    return MemoryImpact(plain[()], spec[()], (spec / plain)[()])
