"""Certify adaptive verification: a rule that cuts drafts, proved or refuted by enumeration.

Verifying fewer tokens than were drafted saves work when the target is busy, and many things say
where to cut: a limit, the batch, the draft model's confidence. A cut before draft token i leaves
the text exact if it depends on the tokens before i alone. If it depends on token i itself, a token
is dropped for what it is, and no residual makes up for it: with K = 1, p = (0.6, 0.4),
q = (0.2, 0.8) and only token 0 ever kept, the text begins with token 0 with probability
0.2 + 0.8 * 0.6 = 0.68.

``certify_cut`` looks for both: two drafts that are alike before a token and cut apart at it, and
the total variation that this makes under a verification rule.
"""

import itertools
from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from specjax.audit.cases import random_cases
from specjax.audit.drafts import draw
from specjax.audit.exact import exact_distribution
from specjax.audit.rules import ROUNDING
from specjax.core.types import Draft, Rule
from specjax.verify.rejection import rejection

SIZE, K = 3, 2


@runtime_checkable
class Cut(Protocol):
    """Say which tokens of a chain are verified; those after a dropped one are dropped too."""

    def __call__(self, draft: Draft, /) -> Bool[Array, "B N"]:
        """Return False where a draft token is dropped; ``draft.probs[:, i]`` is q of node i."""
        ...


class CutFinding(NamedTuple):
    """What enumeration says of a cut."""

    tv: float  # largest total variation between what is emitted and the target's texts
    expected_length: float  # tokens per round, mean over cases
    kept: float  # how many draft tokens are verified, mean over cases
    peek: tuple[tuple[int, ...], tuple[int, ...]] | None  # drafts alike before a token, cut apart

    @property
    def lossless(self) -> bool:
        """Whether the text keeps the target's distribution."""
        return self.peek is None and self.tv < ROUNDING


def certify_cut(
    cut: Cut,
    p_tree: np.ndarray | None = None,
    q_tree: np.ndarray | None = None,
    *,
    rule: Rule = rejection,
) -> CutFinding:
    """Prove or refute that a cut leaves the text exact, for chains drawn from q.

    Args:
        cut: the rule for cutting drafts.
        p_tree: [cases, C, V] the target given every prefix (``prefixes``); random if None.
        q_tree: [cases, C, V] the draft likewise.
        rule: verifies what is left.

    >>> p, q = (np.tile(np.array(law), (1, 3, 1)) for law in ([0.6, 0.4], [0.2, 0.8]))
    >>> found = certify_cut(lambda draft: draft.tokens == 0, p, q)
    >>> found.lossless, round(found.tv, 6), found.peek
    (False, 0.08, ((0,), (1,)))
    """
    if p_tree is None or q_tree is None:
        p_tree, q_tree = random_cases(22, SIZE, K)
    size, depth = p_tree.shape[-1], depth_of(p_tree)
    found = exact_distribution(with_cut(rule, cut), p_tree, q_tree, depth)
    shape = tuple(max(node - 1, 0) for node in range(depth + 1))
    drafts = draw(q_tree, q_tree, shape, np.ones(depth + 1, bool), True)
    parents = np.tile(np.array(shape, np.int32), (len(drafts.tokens), 1))
    given = drafts.tokens.astype(np.int32), parents, drafts.valid, drafts.probs.astype(np.float32)
    kept = np.asarray(kept_by(cut, Draft(*map(jnp.asarray, given))))
    peek, each = None, size**depth
    for case in range(len(p_tree)):
        rows = slice(case * each, (case + 1) * each)
        possible = drafts.chances[rows] > 0
        peek = peek or find_peek(drafts.tokens[rows][possible], kept[rows][possible])
    verified = (kept[:, 1:].sum(axis=1) * drafts.chances).sum() / len(p_tree)
    return CutFinding(
        float((found.tv + found.doubt).max()), float(found.expected_length.mean()),
        float(verified), peek,
    )  # fmt: skip


def depth_of(tree: np.ndarray) -> int:
    """Return K of a tree of distributions given prefixes of up to K tokens."""
    contexts, size = tree.shape[1:]
    return next(k for k in range(contexts) if sum(size**i for i in range(k + 1)) == contexts)


def with_cut(rule: Rule, cut: Cut) -> Rule:
    """Return the rule that verifies what a cut leaves of a draft."""

    def verify(noise, draft, logits, text, sampling, depth):
        left = draft._replace(valid=draft.valid & kept_by(cut, draft))
        return rule.verify(noise, left, logits, text, sampling, depth)

    return Rule(rule.draw_noise, verify)


def kept_by(cut: Cut, draft: Draft) -> Bool[Array, "B N"]:
    """Return which nodes of chains are verified: the root, and all before the first dropped one."""
    return jnp.cumprod(cut(draft).at[:, 0].set(True), axis=1) > 0


def find_peek(
    tokens: np.ndarray, kept: np.ndarray
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return two drafts [N - 1] that are alike before a token, of which only one keeps it."""
    for node in range(1, tokens.shape[1]):
        for a, b in itertools.combinations(range(len(tokens)), 2):
            alike = (tokens[a, 1:node] == tokens[b, 1:node]).all()
            if alike and kept[a, node] != kept[b, node]:
                return tuple(tokens[a, 1:].tolist()), tuple(tokens[b, 1:].tolist())
    return None


def at_most(num_speculative_tokens: int) -> Cut:
    """Return the cut after so many tokens: a limit of the request, the batch or a budget."""
    return lambda draft: jnp.broadcast_to(
        jnp.arange(draft.tokens.shape[1])[None] <= num_speculative_tokens, draft.tokens.shape
    )


def before_unsure_places(threshold: float) -> Cut:
    """Return the cut before the first place where no token has a probability of ``threshold``.

    It reads q, which is known before the token is drawn.
    """
    return lambda draft: probs_of(draft).max(axis=-1) >= threshold


def after_unsure_tokens(threshold: float) -> Cut:
    """Return the cut after the first drawn token that was less likely than ``threshold``.

    That token itself is verified.
    """

    def cut(draft):
        return jnp.roll(own_probs(draft) >= threshold, 1, axis=1).at[:, 1].set(True)

    return cut


def before_unsure_tokens(threshold: float) -> Cut:
    """Return the cut before the first drawn token that was less likely than ``threshold``.

    NOT lossless for sampled drafts: it reads the token that it drops.
    """
    return lambda draft: own_probs(draft) >= threshold


def best_length(costs: tuple[float, ...]) -> Cut:
    """Return the cut at the length with the most expected tokens per cost.

    Expected are 1 and the survivals of the places kept, products of their sureness max(q). Survival
    falls with the length, so that with costs that grow by equal steps the gain rises up to the best
    length and falls after it: whether a token is kept depends on the places before it. NOT lossless
    for sampled drafts with other costs, such as those of batches padded to fixed sizes: there a
    token can be kept for the sake of the places after it, which depend on the token.

    Args:
        costs: of verifying 0, 1, .. K draft tokens.
    """

    def cut(draft):
        survival = jnp.cumprod(probs_of(draft).max(axis=-1).at[:, 0].set(1.0), axis=1)
        gain = jnp.cumsum(survival, axis=1) / jnp.asarray(costs)[None]
        return jnp.arange(survival.shape[1])[None] <= jnp.argmax(gain, axis=1)[:, None]

    return cut


def likeliest_of_batch(budget: int, others: tuple[float, ...]) -> Cut:
    """Return vLLM's cut: the ``budget`` draft tokens of a batch that most likely survive are kept.

    vLLM 0.32's ``enable_adaptive_verification`` ranks all places of all requests by the product of
    their sureness up to there, and its estimate reads max(q) (``acceptance_estimator.py``). A later
    place never outranks an earlier one of its request, so that no token is read that is dropped.

    Args:
        budget: how many draft tokens of the batch are verified; vLLM chooses it by the measured
            costs, from the sureness of the round before.
        others: the survival of the other requests' places.
    """

    def cut(draft):
        survival = jnp.cumprod(probs_of(draft).max(axis=-1).at[:, 0].set(1.0), axis=1)
        better = (jnp.asarray(others)[None, None] >= survival[:, :, None]).sum(axis=-1)
        return better + jnp.arange(survival.shape[1])[None] <= budget

    return cut


def own_probs(draft: Draft) -> Float[Array, "B N"]:
    """Return the probability with which each token was drawn."""
    own = jnp.take_along_axis(probs_of(draft), draft.tokens[:, :, None], axis=-1)
    return own[:, :, 0]


def probs_of(draft: Draft) -> Float[Array, "B N V"]:
    """Return q of each node."""
    assert draft.probs is not None
    return draft.probs


CUTS: dict[str, Cut] = {
    "after 1 token": at_most(1),
    "before places where max(q) < 0.6": before_unsure_places(0.6),
    "after tokens with q(d) < 0.4": after_unsure_tokens(0.4),
    "before tokens with q(d) < 0.4": before_unsure_tokens(0.4),
    "best tokens per cost, equal steps": best_length((1.0, 1.6, 2.2)),
    "best tokens per cost, padded": best_length((1.0, 1.7, 1.7)),
    "the 2 likeliest of the batch (vLLM)": likeliest_of_batch(2, (0.7, 0.5)),
}
