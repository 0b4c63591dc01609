"""Alarms: acceptance near zero, acceptance that decays with context, and drafts never found."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from specjax.theory.arrays import Scalar, require_probs
from specjax.traces.events import Trace
from specjax.traces.positions import alpha, judged_tokens


class Alarm(NamedTuple):
    """A problem of a run, with the numbers that show it and what to check."""

    name: str
    says: str


def alarms(
    trace: Trace, near_zero: Scalar = 0.1, lost: Scalar = 0.2, level: Scalar = 0.95
) -> tuple[Alarm, ...]:
    """Return the problems of a run that are significant at ``level``; usually none.

    - "nothing drafted": not one draft in the whole log.
    - "acceptance near zero": alpha is surely below ``near_zero``.
    - "acceptance decays": in the second half of their output, requests have lost surely some and
      by estimate more than the share ``lost`` of their alpha (at least four requests).

    Raises ValueError unless the three are probabilities.
    """
    require_probs(near_zero=near_zero, lost=lost, level=level)
    found = []
    if trace.rounds.any() and not trace.drafted.any():
        says = (
            f"{int(trace.rounds.sum()):,} rounds and no draft: is speculation on? An n-gram "
            "drafter finds nothing in text that does not repeat; lower prompt_lookup_min."
        )
        found.append(Alarm("nothing drafted", says))
    if not trace.drafted.any():
        return tuple(found)
    whole = alpha(trace, level)
    if whole.high < near_zero:
        says = (
            f"alpha = {whole.estimate:.3f}, surely below {whole.high:.3f}: chance level. Look at "
            "the draft's tokenizer and vocabulary, its chat template, an EAGLE head of another "
            "target, weights that were never loaded."
        )
        found.append(Alarm("acceptance near zero", says))
    early, late, drop = halves(trace, level)
    if drop > 0 and late < (1 - lost) * early:
        says = (
            f"alpha falls from {early:.3f} in the first half of the outputs to {late:.3f} in the "
            "second: is the draft's max_model_len or rope scaling shorter than the target's? "
            "Switch speculation off beyond a length, or give the draft a window."
        )
        found.append(Alarm("acceptance decays", says))
    return tuple(found)


def halves(trace: Trace, level: Scalar = 0.95) -> tuple[float, float, float]:
    """Return alpha in the halves of each request's output, and the lower bound of its drop.

    Both halves come from the same requests, so that long requests are no confounder; the drop's
    standard error leaves one request out at a time (jackknife). NaN for fewer than four requests.
    """
    size = len(trace.names)
    total = np.bincount(trace.request, trace.emitted, size)
    before = np.cumsum(trace.emitted) - trace.emitted
    before = before - (np.cumsum(total) - total)[trace.request]
    second = (2 * before >= total[trace.request]).astype(int)
    judged, hits = (
        np.stack([np.bincount(trace.request, np.where(second == h, one, 0), size) for h in (0, 1)])
        for one in (judged_tokens(trace), trace.accepted)
    )
    both = (judged > 0).all(axis=0)
    judged, hits = judged[:, both], hits[:, both]
    count = int(both.sum())
    if count < 4:
        return np.nan, np.nan, np.nan
    early, late = (hits.sum(axis=1) / judged.sum(axis=1)).tolist()
    rest = (hits.sum(axis=1)[:, None] - hits) / (judged.sum(axis=1)[:, None] - judged)
    drops = rest[0] - rest[1]
    error = np.sqrt((count - 1) / count * ((drops - drops.mean()) ** 2).sum())
    return early, late, float(early - late - stats.t.ppf((1 + level) / 2, count - 1) * error)
