"""Workloads: requests with prompt and output lengths, acceptance and arrival times."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.random import Generator, default_rng

from specjax.theory.arrays import Scalar, Value, require


class Workload(NamedTuple):
    """N requests, in order of arrival. Leaves are arrays of NumPy or JAX."""

    arrivals: Float[Any, "N"]  # s, rising; a closed loop sends as soon as a client is free
    prompts: Int[Any, "N"]  # tokens
    outputs: Int[Any, "N"]  # tokens, at least 1
    alphas: Float[Any, "N"]  # chance that a draft token is accepted, per request
    clients: Int[Any, ""]  # requests in flight at most
    closed: Bool[Any, ""]  # clients send their next request when the last one ends


def closed_loop(
    clients: Scalar,
    num_requests: int,
    mean_input: Scalar,
    mean_output: Scalar,
    alpha: Scalar,
    *,
    output_cv: Scalar = 0.0,
    alpha_concentration: Scalar = np.inf,
    seed: int = 0,
) -> Workload:
    """Return a closed loop: ``clients`` that each send one request after the other.

    Output lengths have mean ``mean_output`` tokens and coefficient of variation ``output_cv``
    (gamma, rounded, at least 1); a request's alpha is drawn from Beta(m C, (1 - m) C) with mean
    m = ``alpha`` and concentration C (infinite: all the same).
    Raises ValueError for no clients or requests, lengths below 1 or alpha outside [0, 1].
    """
    require("clients", clients, 1)
    arrivals = np.zeros(num_requests)
    return make(
        arrivals,
        clients,
        True,
        mean_input,
        mean_output,
        alpha,
        output_cv,
        alpha_concentration,
        seed,
    )


def open_loop(
    rps: Scalar,
    num_requests: int,
    mean_input: Scalar,
    mean_output: Scalar,
    alpha: Scalar,
    *,
    num_slots: Scalar,
    output_cv: Scalar = 0.0,
    alpha_concentration: Scalar = np.inf,
    seed: int = 0,
) -> Workload:
    """Return an open loop: requests that arrive as a Poisson process, ``rps`` per second.

    At most ``num_slots`` run, the others wait in line. Raises as ``closed_loop`` does, or for
    rps not positive.
    """
    require("rps", rps, 1e-300)
    require("num_slots", num_slots, 1)
    arrivals = default_rng([seed, 1]).exponential(1.0 / rps, num_requests).cumsum()
    return make(
        arrivals,
        num_slots,
        False,
        mean_input,
        mean_output,
        alpha,
        output_cv,
        alpha_concentration,
        seed,
    )


def make(
    arrivals: Value,
    clients: Value,
    closed: bool,
    mean_input: Value,
    mean_output: Value,
    alpha: Value,
    output_cv: Value,
    concentration: Value,
    seed: int,
) -> Workload:
    """Return the random requests of a workload."""
    size, rng = len(arrivals), default_rng([seed, 0])
    require("num_requests", size, 1)
    require("mean_input", mean_input, 0)
    require("mean_output", mean_output, 1)
    require("alpha", alpha, 0, 1)
    require("output_cv", output_cv, 0)
    require("alpha_concentration", concentration, 1e-9)
    return Workload(
        arrivals=arrivals,
        prompts=np.full(size, round(mean_input)),
        outputs=lengths(rng, size, mean_output, output_cv),
        alphas=rates(rng, size, alpha, concentration),
        clients=np.asarray(clients),
        closed=np.asarray(closed),
    )


def lengths(rng: Generator, size: int, mean: Scalar, cv: Scalar):
    """Return gamma-distributed output lengths [size], rounded, at least 1; cv 0: all alike."""
    if cv == 0:
        return np.full(size, round(mean))
    drawn = rng.gamma(1.0 / cv**2, mean * cv**2, size)
    return np.maximum(np.rint(drawn), 1).astype(int)


def rates(rng: Generator, size: int, mean: Scalar, concentration: Scalar):
    """Return the requests' random alphas [size]."""
    if not np.isfinite(concentration) or mean in (0, 1):
        return np.full(size, float(mean))
    return rng.beta(mean * concentration, (1 - mean) * concentration, size)
