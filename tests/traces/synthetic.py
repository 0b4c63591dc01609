"""Logs drawn from known laws."""

import numpy as np

from specjax.traces import Event, Trace, to_trace


def draw(
    alphas, num_rounds: int, depth: int = 4, seed: int = 0, beta=None, decay: float = 0.0
) -> Trace:
    """Draw a log: one request per alpha, or per-round alphas from Beta(a, b)."""
    random = np.random.default_rng(seed)
    events = []
    for i, alpha in enumerate(alphas):
        events.append(Event(str(i), 0, 0, 0, 1, 0.1))
        for step in range(1, num_rounds + 1):
            one = alpha if beta is None else random.beta(*beta)
            one *= 1 - decay * step / num_rounds
            hits = random.random(depth) < one
            accepted = int(np.append(hits, False).argmin())
            events.append(Event(str(i), step, depth, accepted, accepted + 1, 0.1 + 0.05 * step))
    return to_trace(events)
