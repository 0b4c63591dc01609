"""Identify the formula behind a claimed speedup or length, and its mistake if there is one.

Numbers about speculative decoding travel without their formulas. Given alpha, K and c there are
few right ones, and the wrong ones are wrong in few ways.
"""

from collections.abc import Callable
from typing import NamedTuple

from specjax.theory.arrays import Scalar, require
from specjax.theory.lengths import accepted_per_step, draft_acceptance_ratio, tokens_per_step
from specjax.theory.published import consult
from specjax.theory.walltime import (
    guaranteed_speedup,
    ops_factor,
    optimal_k,
    oracle_speedup,
    speedup,
)


class Formula(NamedTuple):
    """A formula of (alpha, K, c) whose value is found in print."""

    name: str
    expression: str
    value: Callable[[Scalar, Scalar, Scalar], Scalar]
    slip: str | None = None  # its mistake; None: right for what it is named after


class Claim(NamedTuple):
    """The result of ``check_claim``."""

    claimed: float
    right: bool  # a right formula gives this number
    formula: str  # name of the likeliest formula behind it; "none" if no known one gives it
    expression: str
    value: float  # what that formula gives before rounding; NaN if none
    slip: str | None  # where it errs
    also: tuple[str, ...]  # further formulas that round to the same number
    tokens: float  # the right numbers: tokens per step,
    accepted: float  # accepted tokens per step,
    speedup: float  # and speedup
    says: str  # all of it in a sentence or two
    published: tuple[str, ...] = ()  # what was published of such numbers


def limit(alpha: Scalar, K: Scalar, c: Scalar) -> float:
    """Return alpha / (1 - alpha), infinite at 1."""
    return alpha / (1.0 - alpha) if alpha < 1 else float("inf")


NO_BONUS = "it leaves out the token the target adds in every step"
ENDLESS = "it is the limit K -> infinity, too large by the factor 1 / (1 - alpha^K)"
LINEAR = "it adds up positions as if a rejection did not end the draft"
SHORT_LIMIT = "it is the limit K -> infinity of a sum that starts at alpha^2"
COUNTS = (  # expected numbers of tokens, right and wrong
    Formula("tokens per step", "(1 - a^(K+1)) / (1 - a)", lambda a, K, c: tokens_per_step(a, K)),
    Formula("accepted per step", "a + ... + a^K", lambda a, K, c: accepted_per_step(a, K)),
    Formula("limit of accepted", "a / (1 - a)", limit, ENDLESS),
    Formula("limit of tokens", "1 / (1 - a)", lambda a, K, c: 1.0 + limit(a, K, c), ENDLESS),
    Formula("linear accepted", "K a", lambda a, K, c: K * a, LINEAR),
    Formula("linear tokens", "1 + K a", lambda a, K, c: 1.0 + K * a, LINEAR),
    Formula("a^2 + a^3 + ...", "a^2 / (1 - a)", lambda a, K, c: a * limit(a, K, c), SHORT_LIMIT),
    Formula("linear in K - 1", "(K - 1) a", lambda a, K, c: (K - 1) * a, LINEAR),
)
RATIOS = (
    Formula("speedup", "(1 - a^(K+1)) / (1 - a) / (K c + 1)", speedup),
    Formula(
        "acceptance ratio", "(a + ... + a^K) / K", lambda a, K, c: draft_acceptance_ratio(a, K)
    ),
    Formula(
        "speedup at the best K",
        "max over K of (1 - a^(K+1)) / (1 - a) / (K c + 1)",
        lambda a, K, c: speedup(a, optimal_k(a, c), c),
    ),
    Formula("guaranteed speedup", "(1 + a) / (1 + c)", lambda a, K, c: guaranteed_speedup(a, c)),
    Formula("oracle speedup", "1 / (1 - a + c a)", lambda a, K, c: oracle_speedup(a, c)),
    Formula("operations", "(K c + K + 1) (1 - a) / (1 - a^(K+1))", ops_factor),
    Formula(
        "accepted over cost",
        "(a + ... + a^K) / (K c + 1)",
        lambda a, K, c: accepted_per_step(a, K) / (K * c + 1.0),
        NO_BONUS,
    ),
    *(
        Formula(
            f"{one.name} over cost",
            f"({one.expression}) / (K c + 1)",
            lambda a, K, c, count=one.value: count(a, K, c) / (K * c + 1.0),
            one.slip,
        )
        for one in COUNTS[2:]
    ),
    Formula(
        "tokens over draft cost",
        "G / (K c)",
        lambda a, K, c: tokens_per_step(a, K) / (K * c) if K * c else float("inf"),
        "it leaves out the target's own step",
    ),
    Formula(
        "tokens over K + 1 draft steps",
        "G / ((K + 1) c + 1)",
        lambda a, K, c: tokens_per_step(a, K) / ((K + 1) * c + 1.0),
        "it drafts one token too many",
    ),
    Formula(
        "tokens over K target steps",
        "G / (K (c + 1))",
        lambda a, K, c: tokens_per_step(a, K) / (K * (c + 1.0)),
        "it verifies the tokens one by one",
    ),
)


KINDS = {  # what a number may be claimed to be, and the right formulas for it
    "speedup": ("speedup", "speedup at the best K", "guaranteed speedup", "oracle speedup"),
    "tokens": ("tokens per step",),
    "accepted": ("accepted per step",),
}


def of_kind(one: Formula, kind: str | None) -> Formula:
    """Return a formula, with a mistake if it is right for another kind of number."""
    if kind is None or one.slip is not None or one.name in KINDS[kind]:
        return one
    return one._replace(slip=f"it is {one.name}, claimed as {kind}")


def check_claim(
    alpha: Scalar,
    K: Scalar,
    c: Scalar,
    claimed: Scalar,
    tolerance: Scalar | None = None,
    *,
    kind: str | None = None,
) -> Claim:
    """Return which formula gives a claimed number at (alpha, K, c), and its mistake.

    The right formulas are those of Leviathan et al. 2023 (arXiv 2211.17192), Eq. 1, Thm 3.8, Cor.
    3.9, Thm 3.11 and sec. 3.5.
    A formula produces the number if it rounds to it: ``tolerance`` defaults to half a unit of the
    last digit that ``claimed`` shows, and at most 2.5% of it (2.1 and 2: 0.05). Right formulas win
    over wrong ones, and the nearest among the right; the wrong ones are in order of likelihood.
    c is a draft step over a target step, and verification is taken to cost one target step.
    ``kind``: what the number is claimed to be ("speedup", "tokens", "accepted"); a formula of
    another kind is then a mistake. ``Claim.published`` has what papers measured at like alpha and
    K, and the papers whose stated speedups include the number, unless another kind is claimed.
    Raises ValueError for alpha outside [0, 1], K < 1, c < 0, a negative claim or another kind.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    require("K", K, 1)
    require("claimed", claimed, 0)
    right_speedup = float(speedup(alpha, K, c))  # validates alpha and c
    if tolerance is None:
        half_unit = 0.5 * 10.0 ** -len(f"{claimed}".partition(".")[2])
        tolerance = min(half_unit, 0.025 * claimed)
    found = [
        (abs(value - claimed), float(value), of_kind(one, kind))
        for one in (*COUNTS[:2], *RATIOS, *COUNTS[2:])
        if abs((value := one.value(alpha, K, c)) - claimed) <= tolerance * (1 + 1e-9)
    ]
    right = sorted((hit for hit in found if hit[2].slip is None), key=lambda hit: hit[0])
    ranked = [*right, *(hit for hit in found if hit[2].slip is not None)]
    tokens, accepted = float(tokens_per_step(alpha, K)), float(accepted_per_step(alpha, K))
    truth = (
        f"alpha = {alpha:g}, K = {K}, c = {c:.4g} give {accepted:.5g} accepted and {tokens:.5g} "
        f"emitted tokens per step, speedup {right_speedup:.5g}"
    )
    published = consult(alpha, int(K), claimed) if kind in (None, "speedup") else ()
    if not ranked:
        none = Formula("none", "", speedup)
        says = f"no known formula gives {claimed:g}: {truth}."
        return Claim(
            claimed,
            False,
            none.name,
            "",
            float("nan"),
            None,
            (),
            tokens,
            accepted,
            right_speedup,
            says,
            published,
        )
    _, value, best = ranked[0]
    also = tuple(hit[2].name for hit in ranked[1:])
    if best.slip is None:
        says = f"{claimed:g} is {best.name}, {best.expression} = {value:.5g}: {truth}."
    else:
        says = (
            f"{claimed:g} is not what the formulas give: {truth}. It is {best.expression} = "
            f"{value:.5g} ({best.name}): {best.slip}."
        )
    return Claim(
        claimed,
        best.slip is None,
        best.name,
        best.expression,
        value,
        best.slip,
        also,
        tokens,
        accepted,
        right_speedup,
        says,
        published,
    )
