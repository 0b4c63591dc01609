"""When alpha is not one number: mixtures, a distribution of alphas, a Markov chain of states.

Tokens per step G is convex in alpha, so an average alpha understates it; and which average of
G is right depends on whether the weights count steps or tokens (renewal-reward theorem).
"""

import numpy as np
from scipy.special import betaln

from specjax.theory.arrays import (
    Real,
    Scalar,
    Value,
    arrays,
    library_of,
    require,
    require_distributions,
    require_probs,
)
from specjax.theory.lengths import tokens_per_step


def mixture_tokens(alphas: Real, w: Real, K: Real, weight: str = "steps") -> Value:
    """Return the mean tokens per step over kinds of text with ``alphas`` and shares w [..., M].

    The mean of Eq. 1 of Leviathan et al. 2023 (arXiv 2211.17192).
    ``weight="steps"``: w are shares of steps, the mean of G is arithmetic. ``"tokens"``: w are
    shares of tokens (as when requests are weighted by length), and it is harmonic.
    Raises ValueError if w does not sum to 1, alpha leaves [0, 1], or for another ``weight``.
    """
    require_distributions(w=w)
    xp, alphas, w = arrays(alphas, w)
    tokens = tokens_per_step(alphas, xp.asarray(K)[..., None])
    if weight == "steps":
        return (w * tokens).sum(axis=-1)
    if weight == "tokens":
        return 1.0 / (w / tokens).sum(axis=-1)
    raise ValueError(f"weight must be 'steps' or 'tokens', got {weight!r}")


def jensen_gap(alphas: Real, w: Real, K: Real) -> Value:
    """Return the mean of G(alpha) minus G of the mean alpha, in tokens per step; never negative.

    By Jensen's inequality (1906), since Eq. 1 of Leviathan et al. 2023 (arXiv 2211.17192) is convex
    in alpha.
    Jensen's inequality: G is convex in alpha. ``alphas``, ``w`` [..., M], w shares of steps.
    Raises as ``mixture_tokens`` does.
    """
    mixed = mixture_tokens(alphas, w, K)
    _, alphas, w = arrays(alphas, w)
    return mixed - tokens_per_step((w * alphas).sum(axis=-1), K)


def beta_mixture_tokens(a: Real, b: Real, K: Scalar) -> Value:
    """Return the tokens per step for alpha ~ Beta(a, b): sum_{k=0..K} B(a + k, b) / B(a, b).

    The mean of Eq. 1 of Leviathan et al. 2023 (arXiv 2211.17192) over a Beta distribution, term by
    term.
    One alpha per step, shared by its positions: E[alpha^k] is the ratio of beta functions.
    Its conditional acceptance rises with position, as measured profiles often do. NumPy only.
    Raises ValueError for a or b not positive, or K < 0.
    """
    require("a", a, np.finfo(float).tiny)
    require("b", b, np.finfo(float).tiny)
    require("K", K, 0)
    _, a, b = arrays(np.asarray(a)[..., None], np.asarray(b)[..., None])
    return np.exp(betaln(a + np.arange(int(K) + 1), b) - betaln(a, b)).sum(axis=-1)


def markov_tokens(pi: Real, T: Real, alphas: Real, K: Scalar) -> Value:
    """Return the tokens per step, 1 + sum_{j=1..K} pi (D T)^(j-1) D 1 with D = diag(alphas).

    Eq. 1 of Leviathan et al. 2023 (arXiv 2211.17192) where alpha depends on the state of a Markov
    chain; ours.
    ``pi`` [..., S] is the distribution of the state a step starts in, ``alphas`` [..., S] the
    chance that the next draft token is accepted in each state, ``T`` [..., S, S] the distribution
    of the next state given that it was. For a first-order chain T = min(p, q) / alpha. Equal alphas
    give G.
    Raises ValueError if rows do not sum to 1, alpha leaves [0, 1], or K < 0.
    """
    require_distributions(pi=pi, T=T)
    require_probs(alphas=alphas)
    require("K", K, 0)
    xp = library_of(pi, T, alphas)
    mass, T, alphas = (xp.asarray(one) for one in (pi, T, alphas))
    tokens = mass.sum(axis=-1)
    for _ in range(int(K)):
        accepted = mass * alphas
        tokens = tokens + accepted.sum(axis=-1)
        mass = (accepted[..., None, :] @ T)[..., 0, :]
    return tokens
