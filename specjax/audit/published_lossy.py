"""Published verifications that are LOSSY and not shipped, as rules that the audit can enumerate.

Where a paper takes the likeliest token after the last accepted one, these sample from p.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.audit.published import Parents, emit_path, of, paths_of
from specjax.core.types import Draft, Rule, Verdict
from specjax.verify.block import prefix_probs
from specjax.verify.entropy import entropy
from specjax.verify.noise import Noise, by_round, by_token
from specjax.verify.probs_rule import probs_rule
from specjax.verify.rejection import accept_prefix, recover, token_probs
from specjax.verify.verdict import emit_chain

LIKELIEST = 3  # tokens of which FLy takes the entropy
LEAST = 2.0**-126  # stands for a probability of 0


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


@functools.cache
def fly(entropy_threshold: float, window_size: int) -> Rule:
    """Return FLy, LOSSY: a rejection is overruled where the target is unsure and later agrees.

    Li et al. 2025 (arXiv:2511.22972), as proposed to vLLM (pull request 53987) for sampling. A
    rejected token with p > 0 is accepted if the entropy of the target's three likeliest tokens is
    at least ``entropy_threshold`` and the ``window_size`` tokens after it, all drafted, are
    accepted. A threshold above log 3 + 1 / e never overrules: rejection.
    """

    def kernel(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
        p, q = token_probs(draft, target)
        agreed = draft.valid[:, 1:] & (noise.accept[:, 1:] * q < p)
        likeliest = jax.lax.top_k(target[:, :-1], min(LIKELIEST, target.shape[-1]))[0]
        unsure = jax.scipy.special.entr(likeliest).sum(axis=-1) >= entropy_threshold
        later = [jnp.pad(agreed[:, i:], ((0, 0), (0, i))) for i in range(1, window_size + 1)]
        overruled = unsure & (p > 0) & jnp.stack(later).all(axis=0)
        return accept_prefix(agreed | overruled, noise, draft, target)

    return probs_rule(kernel, by_token)


def hierarchical_kernel(
    noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int
) -> Verdict:
    """Accept the whole draft with probability min(1, p / q of all its tokens), else as a block.

    Zhou et al. 2026 (arXiv:2601.05724), as the code that we read (``algorithm.py`` of the paper's
    repository, b8575e2) has it. Its capped ratio P_k / Q_k / max(1, P_1 / Q_1, .., P_k / Q_k) is
    block verification's min(.. p / q, 1), and so are its acceptance of k < K tokens and what is
    sampled after them. Of K tokens the ratio is not capped there: too many are accepted, LOSSY.
    """
    keep_probs, residual_mass = prefix_probs(draft, target)
    p, q = token_probs(draft, target)
    last = draft.valid.sum(axis=1, keepdims=True) - 1
    whole = jnp.where(draft.valid[:, 1:], p / jnp.maximum(q, LEAST), 1.0).prod(axis=1)
    index = jnp.arange(depth + 1)[None]
    accepted = jnp.where(
        index == last,
        noise.accept < whole[:, None],
        noise.accept * (residual_mass + 1.0 - keep_probs) < residual_mass,
    )
    num_accepted = jnp.where(accepted, index, 0).max(axis=1).astype(jnp.int32)
    after = jnp.take_along_axis(target, num_accepted[:, None, None], axis=1)[:, 0]
    offered = jnp.take_along_axis(keep_probs, num_accepted[:, None], axis=1) * after
    return emit_chain(draft, num_accepted, recover(after, offered, noise, draft, num_accepted))


hierarchical = probs_rule(hierarchical_kernel, by_round)


@functools.cache
def spectr_gbv(parents: Parents) -> Rule:
    """Return SpecTr-GBV as coded, for k paths drawn independently from one root. LOSSY.

    Lin et al. 2026 (arXiv:2604.25925), as the code that we read has it (``src/engine.py`` of
    junemily/SpecTr-GBV, e399f44). With P and Q the probabilities of a path's first i tokens, and
    P(x), Q(x) those with x after them, i < K tokens are accepted with probability
    (sum P(x) (1 - Q(x) / P(x))^k - P (1 - Q / P)^k) / (1 - (1 - Q)^k - sum P(x) (1 - (1 - Q(x) /
    P(x))^k)), and all K with P (1 - (1 - Q / P)^k) / (1 - (1 - Q)^k), quotients at most 1. A path
    is read from behind what an earlier one has had accepted; what was refused is not tried again.
    Then a token is drawn by P(x) (1 - (Q(x) / P(x))^k). The paper has the target's distribution
    changed in the next round, where fewer than K tokens are accepted; that code does not do it.
    """
    ways = paths_of(parents)
    k = len(ways)

    def kernel(noise: Noise, draft: Draft, target: Float[Array, "B N V"], depth: int) -> Verdict:
        probs = draft.probs
        assert probs is not None
        none = jnp.zeros(target.shape[0], bool)
        found, count, done = none.astype(jnp.int32), none.astype(jnp.int32), none
        best_p, best_q = jnp.ones(target.shape[0]), jnp.ones(target.shape[0])
        refused = [[none] * (depth + 1) for _ in ways]
        for j, way in enumerate(ways):
            start, mass_p, mass_q = count, jnp.ones_like(best_p), jnp.ones_like(best_q)
            same = [~none] * j
            for level in range(1, depth + 1):
                node, before = way[level], target[:, way[level - 1]]
                mass_p = mass_p * of(before, draft, node)
                mass_q = mass_q * of(probs[:, node], draft, node)
                tokens = draft.tokens
                same = [
                    alike & (tokens[:, ways[i][level]] == tokens[:, node])
                    for i, alike in enumerate(same)
                ]
                looked = draft.valid[:, node] & ~done
                if level < depth:
                    rest = mass_p[:, None] * target[:, node]
                    ratio = capped(mass_q[:, None] * probs[:, way[level + 1]], rest)
                    missed = (rest * (1.0 - ratio) ** k).sum(axis=-1)
                    above = missed - mass_p * (1.0 - capped(mass_q, mass_p)) ** k
                    below = 1.0 - (1.0 - mass_q) ** k - (mass_p - missed)
                    tried = [refused[i][level] & alike for i, alike in enumerate(same)]
                    looked &= (level > start) & ~functools.reduce(jnp.logical_or, tried, none)
                else:
                    above = mass_p * (1.0 - (1.0 - capped(mass_q, mass_p)) ** k)
                    below = 1.0 - (1.0 - mass_q) ** k
                accepted = looked & (noise.accept[:, node] * jnp.maximum(below, LEAST) < above)
                refused[j][level] = looked & ~accepted
                found, count = jnp.where(accepted, node, found), jnp.where(accepted, level, count)
                best_p = jnp.where(accepted, mass_p, best_p)
                best_q = jnp.where(accepted, mass_q, best_q)
            done |= count == depth
        following = jnp.zeros(len(parents), jnp.int32)
        for way in ways:
            following = following.at[jnp.asarray(way[:-1])].set(jnp.asarray(way[1:]))
        following = following.at[0].set(ways[0][1])
        after = jnp.take_along_axis(target, found[:, None, None], axis=1)[:, 0]
        q = jnp.take_along_axis(probs, following[found][:, None, None], axis=1)[:, 0]
        rest = best_p[:, None] * after
        left = rest * (1.0 - capped(best_q[:, None] * q, rest) ** k)
        left = jnp.where((count == depth)[:, None], after, left)
        return emit_path(parents, noise, draft, found, left, depth)

    return probs_rule(kernel, by_round)


def capped(q: Array, p: Array) -> Array:
    """Return min(q / p, 1)."""
    return jnp.minimum(q / jnp.maximum(p, LEAST), 1.0)
