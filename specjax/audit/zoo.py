"""Broken verifiers, one known bug each in about ten lines, that the audit has to find.

Each function below, in ``zoo_reported`` and in ``zoo_engines``, returns one ``Specimen``. As an
exercise: read the symptom and the code, find the wrong line, and only then read the hint.
``examine`` runs the audit: every specimen must fail it, and the sound rule beside it must pass.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from specjax.audit.specimen import Finding, Options, Specimen, examine
from specjax.audit.zoo_engines import ENGINES
from specjax.audit.zoo_reported import REPORTED
from specjax.core import sampling as s
from specjax.core.topology import ancestors
from specjax.core.types import Rule
from specjax.theory.arrays import Value
from specjax.verify.block import block
from specjax.verify.noise import by_round, by_token, exponential_race
from specjax.verify.probs_rule import probs_rule
from specjax.verify.rejection import accept_prefix, recover, reject, rejection, token_probs
from specjax.verify.rejection_tree import rejection_tree
from specjax.verify.verdict import emit, emit_chain

__all__ = ["ZOO", "Finding", "Specimen", "examine"]


def draft_ignores_temperature() -> Specimen:
    """Symptom: at temperature 0.5 the text is too adventurous; at 1 all is well.

    Hint: q has to be the distribution that was drawn from, not the one that should have been.

    Report: https://github.com/z-lab/dflash/issues/74
    """

    def softmax_of_logits(probs):  # softmax(logits / 0.5)
        return probs**0.5 / (probs**0.5).sum(axis=-1, keepdims=True)

    return Specimen(rejection, drawn=softmax_of_logits)


def argmax_draft_with_softmax_q() -> Specimen:
    """Symptom: the draft model's favourite word comes too seldom, and acceptance looks fine.

    Hint: how often does a greedy drafter propose its second choice?

    Report: https://github.com/jaymody/speculative-sampling/issues/3
    """

    def always_the_likeliest(probs):
        return np.eye(probs.shape[-1])[probs.argmax(axis=-1)]

    return Specimen(rejection, drawn=always_the_likeliest)


def position_shifted_q() -> Specimen:
    """Symptom: all is well where q is the same at every position; elsewhere the text is off.

    Hint: ``probs[:, i]`` is the distribution node i was drawn from, not the next one.

    Report: none, constructed
    """

    def kernel(noise, draft, target, depth):
        return reject(noise, draft._replace(probs=jnp.roll(draft.probs, 1, axis=1)), target, depth)

    return Specimen(probs_rule(kernel))


def filter_after_the_ratio() -> Specimen:
    """Symptom: with top_k = 2 a third word comes, but only where the draft model proposes it.

    Hint: which distribution has the accepted token been compared with?

    Report: https://github.com/vllm-project/vllm/pull/10198
    """

    def verify(noise, draft, logits, text, sampling, depth):
        whole = s.warp(logits, draft, text, sampling._replace(top_k=None))
        p, q = token_probs(draft, whole)
        filtered = s.warp(logits, draft, text, sampling)
        return accept_prefix(noise.accept[:, 1:] * q < p, noise, draft, filtered)

    return Specimen(Rule(by_token, verify), options=Options(top_k=2))


def residual_before_the_filter() -> Specimen:
    """Symptom: with top_k = 2 a third word comes, but only just after a refusal.

    Hint: p has to be the same p in both halves of the rule.

    Report: none, constructed
    """

    def verify(noise, draft, logits, text, sampling, depth):
        p, q = token_probs(draft, s.warp(logits, draft, text, sampling))
        whole = s.warp(logits, draft, text, sampling._replace(top_k=None))
        return accept_prefix(noise.accept[:, 1:] * q < p, noise, draft, whole)

    return Specimen(Rule(by_token, verify), options=Options(top_k=2))


def recovered_from_p() -> Specimen:
    """Symptom: words that both models like come too often.

    Hint: what min(p, q) has given already must not be given again.

    Report: https://github.com/ShopeeLLM/Spec-RL/issues/14
    """

    def kernel(noise, draft, target, depth):
        p, q = token_probs(draft, target)
        unknown = draft._replace(probs=jnp.zeros_like(draft.probs))
        return accept_prefix(noise.accept[:, 1:] * q < p, noise, unknown, target)

    return Specimen(probs_rule(kernel))


def accepts_at_equality() -> Specimen:
    """Symptom: once in eight million tokens, a word of probability zero.

    Hint: a float32 uniform can be 0, and 0 * q <= 0.

    Report: https://github.com/sgl-project/sglang/pull/35798
    """

    def kernel(noise, draft, target, depth):
        p, q = token_probs(draft, target)
        return accept_prefix(noise.accept[:, 1:] * q <= p, noise, draft, target)

    return Specimen(probs_rule(kernel))


def bonus_from_the_wrong_row() -> Specimen:
    """Symptom: after a round that accepted everything, the next word does not fit.

    Hint: K draft tokens have K + 1 rows of logits.

    Report: none, constructed
    """

    def kernel(noise, draft, target, depth):
        return reject(noise, draft, target.at[:, -1].set(target[:, -2]), depth)

    return Specimen(probs_rule(kernel))


def first_token_unverified() -> Specimen:
    """Symptom: mean acceptance length never falls under 2, and the text is the draft model's.

    Hint: the token that the drafter starts from is verified; its first own token is not.

    Report: https://github.com/huggingface/transformers/pull/28508
    """

    def kernel(noise, draft, target, depth):
        p, q = token_probs(draft, target)
        accepted = (noise.accept[:, 1:] * q < p).at[:, 0].set(True)
        return accept_prefix(accepted, noise, draft, target)

    return Specimen(probs_rule(kernel))


def noise_reused_between_rounds() -> Specimen:
    """Symptom: every single round is exact, yet long texts are too lucky or too unlucky.

    Hint: what names a number has to change when the text has grown.

    Report: none, constructed
    """

    def address(keys, text, draft, sampling, vocab_size):
        return by_token(keys, text._replace(lengths=text.starts), draft, sampling, vocab_size)

    return Specimen(Rule(address, rejection.verify))


def block_addressed_by_token() -> Specimen:
    """Symptom: every single round is exact, yet a text is not after one that threw tokens away.

    Hint: block verification looks at uniforms of places that it does not reach.

    Report: none, constructed
    """
    return Specimen(Rule(by_token, block.verify), sound=block)


def block_by_products_of_uniforms() -> Specimen:
    """Symptom: "block verification" accepts far more than before, and the text is worse.

    Hint: with two uniforms, P(u1 * u2 < w) is not w. And what is left after prefix i?

    Report: https://github.com/vllm-project/vllm-ascend/issues/7807
    """

    def kernel(noise, draft, target, depth):
        p, q = token_probs(draft, target)
        worth = jnp.cumprod(p / jnp.maximum(q, 1e-30), axis=1)
        passed = jnp.cumprod(noise.accept[:, 1:], axis=1) < worth
        count = jnp.where(passed, jnp.arange(1, depth + 1)[None], 0).max(axis=1).astype(jnp.int32)
        here = jnp.take_along_axis(target, count[:, None, None], axis=1)[:, 0]
        return emit_chain(draft, count, recover(here, here, noise, draft, count))

    return Specimen(probs_rule(kernel, by_round), sound=block, parts=8)


def penalties_count_the_root_twice() -> Specimen:
    """Symptom: with a frequency penalty, words follow themselves less often than in plain text.

    Hint: the root is the last token of the text.

    Report: https://github.com/vllm-project/vllm/pull/33251
    """

    def verify(noise, draft, logits, text, sampling, depth):
        path = jnp.where(ancestors(draft.parents), draft.tokens[:, None], logits.shape[-1])
        target = s.compute_probs(s.constrain(logits, path, text, sampling), sampling)
        return reject(noise, draft, target, depth)

    return Specimen(Rule(by_token, verify), options=Options(frequency_penalty=0.7))


def residual_not_normalised() -> Specimen:
    """Symptom: with two siblings per level the second is hardly ever accepted.

    Hint: after a refusal what is left of p sums to less than 1, and q does not.

    Report: none, constructed
    """
    return Specimen(
        two_siblings(lambda p, q: jnp.maximum(p - q, 0.0)), rejection_tree, siblings=True
    )


def siblings_all_against_p() -> Specimen:
    """Symptom: with two siblings per level the text drifts to what the draft model likes.

    Hint: the second sibling is only asked when the first was refused.

    Report: none, constructed
    """
    return Specimen(two_siblings(lambda p, q: p), rejection_tree, siblings=True)


def two_siblings(leave: Callable[[Value, Value], Value]) -> Rule:
    """Try two children of the root; ``leave``(p, q) is what a refused one leaves of p."""

    def kernel(noise, draft, target, depth):
        rest, node, none = target[:, 0], draft.parents[:, 0], jnp.zeros_like(draft.parents[:, :1])
        for child in (1, 2):
            token, q = draft.tokens[:, child, None], draft.probs[:, child]
            p_token, q_token = (jnp.take_along_axis(one, token, axis=1)[:, 0] for one in (rest, q))
            accepted = (node == 0) & (noise.accept[:, child] * q_token < p_token)
            node, rest = jnp.where(accepted, child, node), leave(rest, q)
        after = jnp.take_along_axis(target, node[:, None, None], axis=1)[:, 0]
        last = exponential_race(jnp.where((node > 0)[:, None], after, rest), noise, node)
        return emit(
            draft, jnp.concatenate([none, node[:, None]], 1), (node > 0).astype(jnp.int32), last
        )

    return probs_rule(kernel, by_round)


ZOO: tuple[Callable[[], Specimen], ...] = (
    draft_ignores_temperature,
    argmax_draft_with_softmax_q,
    position_shifted_q,
    filter_after_the_ratio,
    residual_before_the_filter,
    recovered_from_p,
    accepts_at_equality,
    bonus_from_the_wrong_row,
    first_token_unverified,
    noise_reused_between_rounds,
    block_addressed_by_token,
    block_by_products_of_uniforms,
    penalties_count_the_root_twice,
    residual_not_normalised,
    siblings_all_against_p,
    *REPORTED,
    *ENGINES,
)
