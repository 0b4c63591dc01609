"""What to change on a server: K by batch size, only as far as measurements or a roofline know."""

import math
from typing import NamedTuple

import numpy as np

from specjax.readers.observation import Observation
from specjax.theory.intervals import Interval
from specjax.theory.modelled import ModelledServer, advise
from specjax.traces.causes import depth
from specjax.traces.gain import Gain

FIXED = np.array([[0.0], [0.25], [0.5]])  # shares of a round's extra time that K does not change
WORTH = 1.02  # a gain that K is changed for


class ServerAdvice(NamedTuple):
    """K at the load that was measured and a schedule, None where not known, and sentences."""

    num_speculative_tokens: int | None
    schedule: list[list[int]] | None  # num_speculative_tokens_per_batch_size
    says: tuple[str, ...]


def best_at_this_load(tokens: np.ndarray, speedup: Interval) -> tuple[int, Interval]:
    """Return the best K at the measured load, up to the one in use, and its gain over that.

    ``tokens`` [K + 1] are those of a round with 0 .. K drafted. What a round takes beyond a plain
    step is known of 0 and K; between them it is linear in K, but for a share within ``FIXED``.
    K changes only for what pays at all of these shares; plain decoding was measured itself.
    """
    k = len(tokens) - 1
    extra = max(tokens[k] / float(speedup.estimate) - 1.0, 0.0)
    cost = 1.0 + extra * (FIXED + (1.0 - FIXED) * np.arange(k + 1) / k)  # [shares, K + 1]
    gains = tokens / cost * (cost[:, k:] / tokens[k])
    low, high = gains.min(axis=0), gains.max(axis=0)
    bounds = [float(one) for one in (speedup.high, speedup.low)]
    low[0], high[0] = (1.0 / (float(speedup.estimate) if math.isnan(b) else b) for b in bounds)
    best = int(low.argmax())
    best = best if low[best] > WORTH else k
    middle = 1.0 / float(speedup.estimate) if best == 0 else float(gains[1, best])
    return best, Interval(middle, float(low[best]), float(high[best]))


def advise_server(seen: Observation, gain: Gain, server: ModelledServer | None) -> ServerAdvice:
    """Return what is known about K at this load and others.

    At this load a measured speedup decides; elsewhere the roofline, where K changes only if the
    change pays at every bound of its assumptions.
    """
    says, here = [], None
    k, rates = depth(seen), seen.acceptance_per_position
    share = 1.0  # of the rounds that had a draft
    if gain.tokens_per_round is not None and seen.mean_acceptance_length:
        accepted = float(seen.mean_acceptance_length) - 1.0
        share = (gain.tokens_per_round - 1.0) / accepted if accepted > 0 else 1.0

    def tokens(n: int) -> float:
        return 1.0 + share * float(sum((rates or ())[:n]))

    if gain.speedup is not None and k is not None and rates is not None:
        here, more = best_at_this_load(np.array([tokens(n) for n in range(k + 1)]), gain.speedup)
        says.append(at_this_load(here, k, more))
    elif gain.speedup is not None and gain.speedup.high < 1:
        says.append(at_this_load(0, k, None))
    if server is None or k is None or rates is None:
        missing = (
            "no --hardware and --model"
            if server is None
            else f"acceptance by position is unknown ({seen.why('acceptance_per_position')})"
        )
        says.append(
            f"No schedule: {missing}. Measure K and plain decoding at batch sizes up to your "
            "largest load: specjax ab run --concurrency 1,8,32,128 --arm plain=url:... --arm ..."
        )
        return ServerAdvice(here, None, tuple(says))
    found = advise(server, tokens, k)
    for (first, last, best), one in zip(found.schedule, found.gains, strict=True):
        which = f"batch {first} to {last}: K = {best}"
        if best == k:
            says.append(f"{which}, as now: no other K is better at every bound.")
        else:
            says.append(f"{which}, {one.low:.2f}x to {one.high:.2f}x of K = {k} at batch {last}.")
    says.append(
        f"Modelled up to batch {found.schedule[-1][1]}, which fits into memory; nothing is said "
        f"of K > {k}, whose acceptance was not seen."
    )
    return ServerAdvice(here, found.schedule, tuple(says))


def at_this_load(best: int, k: int | None, more: Interval | None) -> str:
    """Return the advice at the measured load in a sentence; ``more`` is its gain over K."""
    if best == 0:
        return (
            "At this load plain decoding (K = 0) is measured to be faster: switch speculation off "
            "here, or draft less."
        )
    if best == k or more is None:
        return f"At this load: K = {k}, as now; no smaller K is better at every bound."
    return (
        f"At this load: K = {best}, {more.low:.2f}x to {more.high:.2f}x of K = {k}, if up to "
        f"{FIXED.max():.0%} of a round's extra time does not depend on K. Measure it."
    )
