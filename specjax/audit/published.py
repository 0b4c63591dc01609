"""Published verifications that are not shipped, as rules that the audit can enumerate.

Those for several drafts take the tree's shape, and are unrolled over it. Those that are LOSSY say
so. Where a paper takes the likeliest token after the last accepted one, these sample from p.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.core.types import Draft, Rule, Verdict
from specjax.verify.entropy import entropy
from specjax.verify.noise import Noise, by_round, by_token, exponential_race
from specjax.verify.probs_rule import probs_rule
from specjax.verify.rejection import accept_prefix, token_probs
from specjax.verify.verdict import emit

Parents = tuple[int, ...]
HALVINGS = 30  # of the interval in which SpecTr's rho is searched


@functools.cache
def traversal(parents: Parents) -> Rule:
    """Return traversal verification: from the leaves to the root, whole paths are accepted.

    Weng et al. 2025 (arXiv:2505.12398). A node is kept with probability
    r = min(r_parent p / q, 1), its children first. When a child has been rejected, its parent's r
    becomes S / (S + 1 - r) with S = sum max(r p - q, 0), and its p norm(max(r p - q, 0)). Exact; on
    a chain it is block verification, on one level recursive rejection.
    """

    def kernel(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
        probs = draft.probs
        assert probs is not None
        found, left = jnp.full(target.shape[0], -1), target[:, 0]

        def visit(node: int, kept: Float[Array, "B"]) -> None:
            nonlocal found, left
            p = target[:, node]
            for child in children(parents, node):
                q, valid = probs[:, child], draft.valid[:, child]
                ratio = of(p, draft, child) / jnp.maximum(of(q, draft, child), 2.0**-126)
                visit(child, jnp.where(valid, jnp.minimum(kept * ratio, 1.0), 0.0))
                rest = jnp.maximum(kept[:, None] * p - q, 0.0)
                mass = rest.sum(axis=-1)
                weight = mass + 1.0 - kept
                lost = valid & (mass > 0)
                p = jnp.where(lost[:, None], rest / jnp.where(lost, mass, 1.0)[:, None], p)
                kept = jnp.where(
                    valid & (weight > 0), mass / jnp.where(weight > 0, weight, 1.0), kept
                )
            accepted = noise.accept[:, node] < kept if node else jnp.ones_like(found, bool)
            here = (found < 0) & accepted
            left = jnp.where(here[:, None], p, left)
            found = jnp.where(here, node, found)

        visit(0, jnp.ones(target.shape[0]))
        return emit_path(parents, noise, draft, found, left, depth)

    return probs_rule(kernel, by_round)


@functools.cache
def k_sequential(parents: Parents) -> Rule:
    """Return SpecTr's k-sequential selection among siblings drawn with replacement.

    Sun et al. 2023 (arXiv:2310.15141, K-SEQ). Each of k siblings is accepted with
    probability min(1, p / (rho q)), and after k rejections p less what was accepted is left. With
    b = sum min(p / rho, q), rho solves 1 - (1 - b)^k = rho b. Exact.
    """

    def kernel(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
        assert draft.probs is not None
        found = jnp.zeros(target.shape[0], jnp.int32)
        left, open_ = target[:, 0], jnp.ones_like(found, bool)
        for node in range(len(parents)):
            siblings = children(parents, node)
            if not siblings:
                continue
            reached, p, q = open_ & (found == node), target[:, node], draft.probs[:, siblings[0]]
            rho, given = solve_rho(p, q, len(siblings))
            taken = jnp.full_like(found, -1)
            for child in siblings:
                ratio = rho * of(q, draft, child)
                yes = (noise.accept[:, child] * ratio < of(p, draft, child)) & (taken < 0)
                taken = jnp.where(yes, child, taken)
            rest = jnp.maximum(p - given, 0.0)
            found = jnp.where(reached & (taken >= 0), taken, found)
            after = jnp.take_along_axis(target, found[:, None, None], axis=1)[:, 0]
            left = jnp.where(reached[:, None], jnp.where((taken < 0)[:, None], rest, after), left)
            open_ &= ~(reached & (taken < 0))
        return emit_path(parents, noise, draft, found, left, depth)

    return probs_rule(kernel, by_round)


def solve_rho(
    p: Float[Array, "B V"], q: Float[Array, "B V"], k: int
) -> tuple[Float[Array, "B"], Float[Array, "B V"]]:
    """Return SpecTr's rho, and with which probability each token is emitted as a draft."""

    def share(rho):
        return jnp.minimum(p / rho[:, None], q).sum(axis=-1)

    def halve(ends, _):
        low, high = ends
        middle = (low + high) / 2
        b = share(middle)
        enough = 1.0 - (1.0 - b) ** k <= middle * b
        return (jnp.where(enough, low, middle), jnp.where(enough, middle, high)), None

    ends = jnp.ones(p.shape[0]), jnp.full(p.shape[0], float(k))
    (_, rho), _ = jax.lax.scan(halve, ends, length=HALVINGS)
    b = share(rho)
    accepted = 1.0 - (1.0 - b) ** k
    scale = accepted / jnp.where(b > 0, b, 1.0)
    return rho, jnp.minimum(p / rho[:, None], q) * scale[:, None]


def children(parents: Parents, node: int) -> list[int]:
    """Return the children of a node."""
    return [child for child in range(1, len(parents)) if parents[child] == node]


def of(probs: Float[Array, "B V"], draft: Draft, node: int) -> Float[Array, "B"]:
    """Return the probability of a node's token."""
    return jnp.take_along_axis(probs, draft.tokens[:, node, None], axis=1)[:, 0]


def emit_path(
    parents: Parents, noise: Noise, draft: Draft, found: Array, left: Array, depth: int
) -> Verdict:
    """Return the verdict that accepts the path to a node, and a token sampled from ``left``."""
    paths, counts = [], []
    for node in range(len(parents)):
        path = [node]
        while path[0]:
            path.insert(0, parents[path[0]])
        counts.append(len(path) - 1)
        paths.append(path + [0] * (depth + 1 - len(path)))
    last = exponential_race(left, noise, found)
    return emit(draft, jnp.asarray(paths)[found], jnp.asarray(counts, jnp.int32)[found], last)


def lenience(l: float) -> Rule:  # noqa: E741
    """Return rejection with q multiplied by l before it is compared with p, LOSSY below 1.

    Leviathan et al. 2023 (arXiv:2211.17192, appendix A.5), whose recovered token is rejection's.
    """
    return entropy(l, 0.0)


@functools.cache
def target_only(threshold_single: float = 1.0, threshold_acc: float = 1.0) -> Rule:
    """Return SGLang's acceptance by the target alone, LOSSY for thresholds below 1.

    A draft token is accepted with probability min(1, p / ``threshold_acc``), and surely where p is
    at least ``threshold_single`` (its ``--speculative-accept-threshold-*``); after a rejection p
    without that token is left. At (1, 1) exact, as for a draft of which only the token is known.
    """

    def kernel(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
        p, _ = token_probs(draft, target)
        accepted = (noise.accept[:, 1:] * threshold_acc < p) | (p >= threshold_single)
        return accept_prefix(accepted, noise, draft._replace(probs=None), target)

    return probs_rule(kernel, by_token)


@functools.cache
def relaxed(topk: int, delta: float) -> Rule:
    """Return TensorRT-LLM's relaxed acceptance, LOSSY: any token that is likely enough.

    Accepted is a draft token among the target's ``topk`` likeliest (its ``relaxed_topk``) whose p
    is at least the likeliest one's less ``delta`` (``relaxed_delta``). It knows no rejection, so
    that the next token is sampled from p.
    """

    def kernel(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
        p, _ = token_probs(draft, target)
        above = (target[:, :-1] > p[:, :, None]).sum(axis=-1)
        accepted = (above < topk) & (p >= target[:, :-1].max(axis=-1) - delta)
        nothing = draft._replace(probs=jnp.zeros_like(target))
        return accept_prefix(accepted, noise, nothing, target)

    return probs_rule(kernel, by_token)
