"""Sampled drafts have the distribution ``Draft.probs``, and the verified text the target's."""

import numpy as np

from specjax.core.types import RUNNING
from specjax.testing import harness as h
from specjax.testing.form import require
from specjax.testing.subject import Subject, long_rows, propose
from specjax.theory.goodness import distribution_test
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree

LEAST_P_VALUE = 1e-6
NUM_BINS = 20


def exact(subject: Subject) -> None:
    """Check that sampled drafts have their distribution, and the verified text the target's.

    A drafter without ``Draft.probs`` passes. A token's rank within its distribution, made
    continuous by a uniform number, is uniform if it was drawn from it (Rosenblatt 1952); so the
    draft tokens are tested against ``Draft.probs``, and emitted ones, verified by rejection,
    against the target's distribution.
    """
    rows = [row._replace(temperature=1.0) for row in long_rows(16, seed=5)]
    rule = rejection if subject.drafter.nodes == subject.drafter.depth + 1 else rejection_tree
    engine, state = subject.start(rows, rule)
    if propose(engine, subject.params.draft, state)[0].probs is None:
        return
    ranks, rng = [], np.random.default_rng(0)
    while bool((state.text.reason == RUNNING).all()):
        draft, _ = propose(engine, subject.params.draft, state)
        valid, probs = np.asarray(draft.valid)[:, 1:], np.asarray(draft.probs)[:, 1:]
        ranks.append(uniform_ranks(probs[valid], np.asarray(draft.tokens)[:, 1:][valid], rng))
        state, _ = h.step(engine, subject.params, state)
    require_uniform(np.concatenate(ranks), "draft tokens do not have the distribution Draft.probs")
    found = subject.run(rows, rule=rule)
    logprobs = np.concatenate(found.logprobs)
    ranks = uniform_ranks(np.exp(logprobs), np.concatenate(found.tokens), rng)
    require_uniform(
        ranks, "verified by rejection, the text does not have the target's distribution"
    )


def uniform_ranks(probs: np.ndarray, tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return numbers that are uniform in [0, 1) if each token was drawn from its probs [V]."""
    probs = probs / probs.sum(axis=-1, keepdims=True)
    own = np.take_along_axis(probs, tokens[:, None], axis=-1)[:, 0]
    above = np.take_along_axis(probs.cumsum(axis=-1), tokens[:, None], axis=-1)[:, 0]
    return np.clip(above - own * rng.random(len(own)), 0.0, 1.0 - 1e-9)


def require_uniform(ranks: np.ndarray, message: str) -> None:
    """Raise AssertionError unless numbers pass a chi-square test for being uniform."""
    counts = np.bincount((ranks * NUM_BINS).astype(int), minlength=NUM_BINS)
    p_value = distribution_test(counts, np.full(NUM_BINS, 1 / NUM_BINS)).p_value
    require(
        p_value >= LEAST_P_VALUE,
        f"{message}: chi-square over {len(ranks)} tokens, p = {p_value:.1g}",
    )
