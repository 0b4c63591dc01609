"""Explain a speedup: tokens per round against the costs of drafting and verification.

In units of a plain step, a round costs 1 + draft + (verify - 1) + overhead and brings 1 + accepted
tokens, so speculation pays if and only if accepted > draft + (verify - 1) + overhead. The share of
the draft's and the verification's cost that was spent on rejected tokens counts as
acceptance's; the largest of the four is the guilty term.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from specjax import theory
from specjax.theory.arrays import Scalar, Value, require
from specjax.traces.events import Trace
from specjax.traces.measured_schedule import Step, measured_schedule
from specjax.traces.positions import alpha, judged_tokens

WHOLE = ("num_speculative_tokens", "batch_size", "k")
ACCEPTANCE = ("tokens_per_round", "acceptance_rate", "alpha")
REMEDIES = {
    "acceptance": "It goes into rejected tokens: draft fewer, or find a drafter that knows this "
    "text (temperature, domain and chat template count too)",
    "draft": "It goes into drafting: a smaller draft, fewer layers or a head on the target, or one "
    "without a model (ngram, suffix)",
    "verify": "It goes into verifying more than one token: at this batch or context the target is "
    "bound by compute (or wakes more experts); draft less under load",
    "overhead": "Neither model is at work: host, sampling, scheduling or transfers between "
    "rounds; fuse or overlap them, and check that graphs or compilation are on",
    "cost": "Measure draft_s and verify_s to see which part it is (specjax bench costs does, for "
    "specjax)",
}
LITTLE = 0.25  # plain steps: a cost below it is not worth a remedy where speculation pays


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of one configuration at one batch size. Seconds are per round.

    Acceptance is one of ``tokens_per_round`` (the target's own token included),
    ``acceptance_rate`` (accepted / drafted) or ``alpha``; a log takes their place.
    """

    num_speculative_tokens: int
    plain_s: float | None = None  # a step of plain decoding
    round_s: float | None = None  # a whole round of speculation
    draft_s: float | None = None  # drafting its tokens
    verify_s: float | None = None  # the target's pass over 1 + K tokens per row
    tokens_per_round: float | None = None
    acceptance_rate: float | None = None
    alpha: float | None = None
    mean_drafted: float | None = None  # K if the drafter always finds K
    batch_size: int = 1
    steps: tuple[Step, ...] = ()  # rounds at several batch sizes and K (0: plain), for the schedule

    def __post_init__(self):
        require("num_speculative_tokens", self.num_speculative_tokens, 1)
        require("batch_size", self.batch_size, 1)
        for name in ("plain_s", "round_s", "draft_s", "verify_s", "mean_drafted"):
            value = getattr(self, name)
            require(name, 1 if value is None else value, 0 if name == "draft_s" else 1e-300)
        given = [name for name in ACCEPTANCE if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"give one of {', '.join(ACCEPTANCE)}, got {' and '.join(given)}")
        drafted = self.mean_drafted or self.num_speculative_tokens
        require("mean_drafted", drafted, 0, self.num_speculative_tokens)
        require("tokens_per_round", self.tokens_per_round or 1.0, 1.0, 1.0 + drafted)
        for name in ("acceptance_rate", "alpha"):
            require(name, getattr(self, name) or 0.0, 0.0, 1.0)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Measured":
        """Return the measurements in a JSON file. Raises ValueError for wrong keys or values."""
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise ValueError(f"unknown key {key!r} of a measurement. Valid: {', '.join(known)}")
        if "num_speculative_tokens" not in values:
            raise ValueError("a measurement needs num_speculative_tokens, the K it was made with")
        given = {key: value for key, value in values.items() if value is not None}
        steps = given.pop("steps", ())
        try:
            timed = tuple(Step(*(as_number(n, one[n]) for n in Step._fields)) for one in steps)
        except (KeyError, TypeError):
            raise ValueError(
                f"steps must be a list of objects with {', '.join(Step._fields)}, got {steps!r}"
            ) from None
        return cls(steps=timed, **{name: as_number(name, value) for name, value in given.items()})


def as_number(name: str, value: Any) -> Any:
    """Return a JSON number as the type of its field. Raises ValueError for another value."""
    whole = name in WHOLE
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise ValueError(f"{name} must be a {'whole ' * whole}number, got {value!r}")
    return value if whole else float(value)


class Acceptance(NamedTuple):
    """The acceptance of drafts."""

    alpha: float
    marginals: tuple[float, ...]  # [K]: share of rounds that accepted more than i tokens
    mean_drafted: float

    @property
    def accepted(self) -> float:
        """Accepted tokens per round."""
        return sum(self.marginals)

    def tokens(self, k: int) -> float:
        """Return the expected tokens per round at another K: drafts cut, or extended with alpha."""
        more = self.marginals[-1] * theory.accepted_per_step(
            self.alpha, max(k - len(self.marginals), 0)
        )
        return 1.0 + sum(self.marginals[:k]) + float(more)


class Explanation(NamedTuple):
    """The parts of a round's time, in plain steps; None where not measured."""

    num_speculative_tokens: int
    batch_size: int
    alpha: float
    acceptance_rate: float  # accepted / drafted
    tokens_per_round: float
    draft: float | None
    verify: float | None  # beyond the one token a plain step verifies
    overhead: float | None
    round_cost: float | None
    speedup: float | None
    blame: dict[str, float]  # guilty term -> plain steps per round
    guilty: str | None
    remedy: str | None
    breakeven_alpha: float | None  # None: no acceptance would pay
    best_k: int | None
    best_speedup: float | None
    schedule: list[list[int]] | None  # num_speculative_tokens_per_batch_size


def explain(
    measured: Measured,
    acceptance: Acceptance | None = None,
    *,
    hysteresis: Scalar = 0.02,
) -> Explanation:
    """Return a speedup split into acceptance x (draft, verify, overhead), and the best K.

    Costs are taken as linear in K between plain decoding and the measured round, so that
    ``best_k`` (0: switch it off) is a prediction for this batch size, never larger than the
    measured K: where a longer draft becomes dear to verify is not known. The schedule is that of
    ``measured_schedule`` and ends at the largest batch size in ``measured.steps``.
    Raises ValueError if acceptance is neither measured nor given.
    """
    found = acceptance_of(measured) if acceptance is None else acceptance
    k = measured.num_speculative_tokens
    rate = found.accepted / found.mean_drafted
    tokens = 1.0 + found.accepted
    draft, verify, overhead, cost = parts(measured)
    blame = blamed(rate, draft, verify, overhead, cost)
    most = max(blame, key=lambda name: blame[name], default=None)
    guilty = most if most is not None and blame[most] > 0 else None
    best, gain, least = None, None, None
    if cost is not None:
        fixed = max(overhead or 0.0, 0.0)
        extra = cost - 1.0 - fixed
        gains = [1.0] + [found.tokens(n) / (1.0 + extra * n / k + fixed) for n in range(1, k + 1)]
        best = int(np.argmax(gains))
        gain = float(gains[best])
        needed = 1.0 + (cost - 1.0) * k / found.mean_drafted  # of a draft that was found
        root = float(theory.breakeven_alpha(k, 0.0, max(needed, 0.0)))
        least = None if math.isnan(root) else root
    return Explanation(
        num_speculative_tokens=k,
        batch_size=measured.batch_size,
        alpha=found.alpha,
        acceptance_rate=rate,
        tokens_per_round=tokens,
        draft=draft,
        verify=verify,
        overhead=overhead,
        round_cost=cost,
        speedup=None if cost is None else tokens / cost,
        blame=blame,
        guilty=guilty,
        remedy=None if guilty is None else REMEDIES[guilty],
        breakeven_alpha=least,
        best_k=best,
        best_speedup=gain,
        schedule=measured_schedule(measured.steps, found.tokens, hysteresis),
    )


def parts(measured: Measured):
    """Return draft, verify, overhead and the whole round in plain steps, None where unknown."""
    plain, draft, verify, whole = (
        getattr(measured, name) for name in ("plain_s", "draft_s", "verify_s", "round_s")
    )
    if whole is None and draft is not None and verify is not None:
        whole = draft + verify
    if plain is None or whole is None:
        return None, None, None, None
    cost = whole / plain
    if draft is None or verify is None:
        return None, None, None, cost
    d, v = draft / plain, verify / plain - 1.0
    return d, v, cost - 1.0 - d - v, cost


def blamed(
    rate: float,
    draft: Value | None,
    verify: Value | None,
    overhead: Value | None,
    cost: Value | None,
) -> dict[str, float]:
    """Return a round's extra cost by cause; the part spent on rejected tokens is acceptance's."""
    if cost is None:
        return {}
    if draft is None or verify is None or overhead is None:
        return {"acceptance": (1.0 - rate) * (cost - 1.0), "cost": rate * (cost - 1.0)}
    return {
        "acceptance": (1.0 - rate) * (draft + verify),
        "draft": rate * draft,
        "verify": rate * verify,
        "overhead": overhead,
    }


def acceptance_of(measured: Measured) -> Acceptance:
    """Return an acceptance by position from one number.

    All positions have one alpha, and a draft has K tokens or, where nothing was found, none.
    Raises ValueError if no number is there.
    """
    k = measured.num_speculative_tokens
    drafted = float(k if measured.mean_drafted is None else measured.mean_drafted)
    if measured.alpha is not None:
        one = measured.alpha
    else:
        if measured.tokens_per_round is not None:
            accepted = measured.tokens_per_round - 1.0
        elif measured.acceptance_rate is not None:
            accepted = measured.acceptance_rate * drafted
        else:
            raise ValueError(f"how much was accepted? Give a log or one of {', '.join(ACCEPTANCE)}")
        one = float(theory.alpha_from_length(1.0 + accepted * k / drafted, k))
    marginals = drafted / k * one ** np.arange(1, k + 1)
    return Acceptance(one, tuple(marginals.tolist()), drafted)


def acceptance_from(trace: Trace) -> Acceptance:
    """Return a log's acceptance over all its rounds, those without a draft included.

    Raises ValueError for a log that never drafted.
    """
    steps = trace.where(trace.rounds)
    require("the number of drafted tokens", judged_tokens(steps).sum(), 1)
    places = np.arange(trace.depth)[:, None]
    marginals = (steps.accepted[None] > places).mean(axis=1)
    return Acceptance(alpha(trace).estimate, tuple(marginals.tolist()), float(steps.drafted.mean()))


def round_seconds(trace: Trace) -> float:
    """Return the median seconds between two steps of a request, a round's time at this load.

    The median leaves out rounds that waited for a prefill or a compilation.
    Raises ValueError for a log without rounds or times.
    """
    gaps = np.diff(trace.time)[np.diff(trace.request) == 0]
    require("the number of rounds in the log", len(gaps), 1)
    require("the median time of a round in the log", np.median(gaps), 1e-300)
    return float(np.median(gaps))


def to_sentences(found: Explanation) -> Sequence[str]:
    """Return an explanation as sentences, the verdict first."""
    lines = []
    if found.speedup is None or found.round_cost is None:
        lines.append(
            f"A round brings {found.tokens_per_round:.2f} tokens: it pays while it costs less than "
            f"{found.tokens_per_round:.2f} plain steps. What it costs was not measured: give "
            "--plain (a log of plain decoding) or --measured (plain_s and round_s)."
        )
        return lines
    word = "Faster" if found.speedup >= 1 else "Slower"
    lines.append(
        f"{word}: {found.speedup:.2f}x. A round brings {found.tokens_per_round:.2f} tokens and "
        f"costs {found.round_cost:.2f} plain steps."
    )
    if found.guilty is not None:
        cost, extra = found.blame[found.guilty], found.round_cost - 1.0
        what = "The guilty term" if found.speedup < 1 else "The largest cost"
        line = f"{what}: {found.guilty}, {cost:.2f} of the {extra:.2f} plain steps beyond one."
        small = found.speedup >= 1 and cost < LITTLE
        lines.append(f"{line} There is little to gain." if small else f"{line} {found.remedy}.")
    if found.breakeven_alpha is None:
        lines.append("No acceptance would make this K pay: the round costs more than K + 1 steps.")
    else:
        lines.append(f"Break-even alpha: {found.breakeven_alpha:.3f}; measured {found.alpha:.3f}.")
    if found.best_k == 0:
        lines.append(
            f"Best K up to the measured {found.num_speculative_tokens}: 0. "
            "Switch speculation off here."
        )
    else:
        lines.append(
            f"Best K up to the measured {found.num_speculative_tokens}: {found.best_k}, predicted "
            f"{found.best_speedup:.2f}x."
        )
    if found.schedule is None:
        lines.append(
            f"This holds at batch size {found.batch_size}. No schedule: rounds with and without "
            "speculation at batch size 1 and larger ones were not measured (steps in --measured; "
            "specjax bench costs writes them for specjax)."
        )
    else:
        lines.append(
            f"Schedule: measured up to batch size {found.schedule[-1][1]}; nothing is known beyond."
        )
    return lines
