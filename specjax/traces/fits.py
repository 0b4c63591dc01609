"""Models of acceptance fitted to a log, which predict tokens per round at other K.

One alpha ignores that some text is easier. The models have an alpha per draft (Beta), an alpha per
request (mixture), or a memory from token to token (Markov). All three treat the positions after a
rejection, and after the end of a draft, as censored.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import betaln, xlog1py, xlogy

from specjax import theory
from specjax.theory.arrays import require
from specjax.traces.events import Trace
from specjax.traces.positions import alpha, by_position, judged_tokens


class Beta(NamedTuple):
    """Every draft has an alpha of its own, from Beta(a, b)."""

    a: float
    b: float

    def tokens(self, K: int) -> float:
        """Return the expected tokens per round."""
        return float(theory.beta_mixture_tokens(self.a, self.b, K))


class Mixture(NamedTuple):
    """Every request is of one of M kinds."""

    alphas: Float[np.ndarray, "M"]
    shares: Float[np.ndarray, "M"]  # of the tokens: the text, and so these, are the same at any K

    def tokens(self, K: int) -> float:
        """Return the expected tokens per round: the harmonic mean, weighted by tokens."""
        return float(theory.mixture_tokens(self.alphas, self.shares, K, weight="tokens"))


class Markov(NamedTuple):
    """A draft token's acceptance depends on whether the token before it was accepted."""

    after_recovered: float  # a rejection, or a round that drafted nothing
    after_bonus: float  # a draft accepted to its end
    after_accepted: float  # an accepted draft token of the same draft

    def tokens(self, K: int) -> float:
        """Return the expected tokens per round in the long run.

        A round starts after a recovered or a bonus token. With f = the chance that a draft is
        accepted to its end, the share of starts after a bonus is f_r / (1 - f_b + f_r).
        """
        if K == 0:
            return 1.0
        full_r, full_b = (
            first * self.after_accepted ** (K - 1)
            for first in (self.after_recovered, self.after_bonus)
        )
        bonus = full_r / (1.0 - full_b + full_r) if full_b < 1 else 1.0
        start = np.array([1.0 - bonus, bonus, 0.0])
        into_accepted = np.array([[0.0, 0.0, 1.0]] * 3)
        return float(theory.markov_tokens(start, into_accepted, np.array(self), K))


def fit_beta(trace: Trace) -> Beta:
    """Return Beta(a, b) fitted to the accepted lengths by maximum likelihood.

    P(l accepted, then a rejection) = B(a + l, b + 1) / B(a, b); a draft of d tokens accepted to
    its end has P = B(a + d, b) / B(a, b). Raises ValueError if nothing was drafted.
    """
    mean = np.clip(alpha(trace).estimate, 0.01, 0.99)
    drafts = trace.where(trace.drafted > 0)
    pairs = np.stack([drafts.accepted, drafts.accepted < drafts.drafted], axis=1)
    (kinds, times) = np.unique(pairs, axis=0, return_counts=True)

    def loss(logs):
        a, b = np.exp(logs)
        log_likelihood = betaln(a + kinds[:, 0], b + kinds[:, 1]) - betaln(a, b)
        return -float(times @ log_likelihood) / times.sum()

    start = np.log([2 * mean, 2 * (1 - mean)])
    found = minimize(loss, start, method="L-BFGS-B", bounds=[(-6.0, 9.0)] * 2)
    return Beta(*np.exp(found.x).tolist())


def fit_mixture(trace: Trace, num_kinds: int = 2, num_iterations: int = 200) -> Mixture:
    """Return ``num_kinds`` alphas fitted to the requests by EM (Dempster et al. 1977).

    A request's accepted and judged tokens are its data. Starts at quantiles of the requests'
    own alphas. Raises ValueError for fewer requests that drafted than kinds.
    """
    size = len(trace.names)
    hits = np.bincount(trace.request, trace.accepted, size)
    judged = np.bincount(trace.request, judged_tokens(trace), size)
    emitted = np.bincount(trace.request, trace.emitted * trace.rounds, size)
    hits, judged, emitted = (one[judged > 0] for one in (hits, judged, emitted))
    require("num_kinds", num_kinds, 1)
    require("the number of requests that drafted", len(hits), num_kinds)
    ranks = (np.arange(num_kinds) + 0.5) / num_kinds
    alphas = np.clip(np.quantile(hits / judged, ranks), 0.01, 0.99)
    prior = np.full(num_kinds, 1.0 / num_kinds)
    member = np.empty((len(hits), num_kinds))
    for _ in range(num_iterations):
        fit = xlogy(hits[:, None], alphas) + xlog1py((judged - hits)[:, None], -alphas)
        fit += np.log(np.maximum(prior, 1e-300))
        member = np.exp(fit - fit.max(axis=1, keepdims=True))
        member /= member.sum(axis=1, keepdims=True)
        weight = member.T @ judged
        alphas = np.where(weight > 0, member.T @ hits / np.maximum(weight, 1e-300), alphas)
        prior = member.mean(axis=0)
    shares = member.T @ emitted
    return Mixture(alphas, shares / shares.sum())


def fit_markov(trace: Trace) -> Markov:
    """Return the three probabilities by counting; alpha where one was never observed."""
    full = (trace.drafted > 0) & (trace.accepted == trace.drafted)
    after_bonus = np.concatenate([[False], full[:-1]]) & trace.rounds
    tried = trace.drafted > 0
    later = judged_tokens(trace) - tried
    one = alpha(trace).estimate

    def chance(hits, trials):
        return float(hits.sum() / trials.sum()) if trials.sum() else one

    first = trace.accepted > 0
    return Markov(
        chance(first & ~after_bonus, tried & ~after_bonus),
        chance(first & after_bonus, tried & after_bonus),
        chance(np.maximum(trace.accepted - 1, 0), later),
    )


class Curves(NamedTuple):
    """Tokens per round against K."""

    ks: tuple[int, ...]
    truncated: tuple[float, ...]  # the log's own drafts cut at K; NaN beyond their length
    one_alpha: tuple[float, ...]
    beta: tuple[float, ...]
    mixture: tuple[float, ...]
    markov: tuple[float, ...]


def tokens_by_k(trace: Trace, ks: Sequence[int]) -> Curves:
    """Return the tokens per round at each K, for drafters that always propose K tokens.

    ``truncated`` assumes that rounds start where they did; the models assume that what they
    learned up to the log's K goes on beyond it, and their spread is how little is known there.
    Of a log with drafts of several lengths, ``truncated`` uses ``Positions.survival``.
    Raises ValueError for a negative K or if nothing was drafted.
    """
    require("K", ks, 0)
    survival = by_position(trace).survival
    known = np.concatenate([[1.0], 1.0 + np.cumsum(survival)])
    one = alpha(trace).estimate
    num_kinds = min(2, len(np.unique(trace.request[trace.drafted > 0])))
    models = (fit_beta(trace), fit_mixture(trace, num_kinds), fit_markov(trace))
    return Curves(
        tuple(ks),
        tuple(float(known[k]) if k < len(known) else float("nan") for k in ks),
        tuple(float(theory.tokens_per_step(one, k)) for k in ks),
        *(tuple(model.tokens(k) for k in ks) for model in models),
    )
