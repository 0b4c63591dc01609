"""A gain predicted from tokens per round and the cost of a round."""

from collections.abc import Sequence

import numpy as np

from specjax.ab.measures import Measures
from specjax.ab.records import Unit
from specjax.traces.explain import Explanation, Measured, explain


def explained(base: Sequence[Unit], arm: Sequence[Unit], found: Measures) -> Explanation | None:
    """Return a gain split into tokens per round and the cost of a round.

    A round's time is the median gap between two chunks. None unless both arms have tokens per
    chunk, the arm has counters of drafts, and the base has none.
    """
    counted, rounds = found.counters, chunks(arm)
    plain = chunks([one for one in base if not (one.counters or {}).get("num_drafts")])
    if counted is None or not counted.num_drafts or not len(rounds) or not len(plain):
        return None
    gaps, tokens = rounds.T
    depth = len(counted.num_accepted_tokens_per_pos)
    per_round = min(max(float(tokens.mean()), 1.0), 1.0 + depth)
    drafted = counted.num_draft_tokens / max(len(rounds), counted.num_drafts)
    return explain(
        Measured(
            num_speculative_tokens=depth,
            plain_s=float(np.median(plain[:, 0] / plain[:, 1])),
            round_s=float(np.median(gaps)),
            tokens_per_round=per_round,
            mean_drafted=float(min(max(drafted, per_round - 1.0), depth)),
            batch_size=max(round(found.occupancy), 1),
        )
    )


def chunks(units: Sequence[Unit]) -> np.ndarray:
    """Return (seconds since the previous chunk, tokens) of every chunk but the first, [C, 2]."""
    rows = [
        (gap, count)
        for unit in units
        for one in unit.requests
        if one.error is None and one.counts
        for gap, count in zip(np.diff(one.times), one.counts[1:], strict=True)
    ]
    return np.array(rows, np.float64).reshape(-1, 2)
