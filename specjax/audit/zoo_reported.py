"""Broken verifiers that others have reported, each with the report it is made after.

They are written down here in our words and on our types; a report is cited where we have read it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from specjax.audit.specimen import Options, Specimen
from specjax.audit.zoo_pairs import drafted_by_token_index, recovered_with_draft_noise
from specjax.core import sampling as s
from specjax.core.types import Rule
from specjax.drafters.draft_model import draft_model
from specjax.models.toy import markov_target
from specjax.verify.block import block
from specjax.verify.noise import by_token
from specjax.verify.probs_rule import probs_rule
from specjax.verify.rejection import accept_prefix, draft_probs_at, recover, reject, token_probs
from specjax.verify.rejection_tree import descend, rejection_tree
from specjax.verify.verdict import emit_chain


def min_p_on_the_bonus_token_alone() -> Specimen:
    """Symptom: with min_p = 0.3 unlikely words come, but never after a round that accepted all.

    Hint: a filter that never changes the likeliest token still changes what is sampled.

    Report: https://github.com/vllm-project/vllm/issues/42744
    """

    def verify(noise, draft, logits, text, sampling, depth):
        whole = s.warp(logits, draft, text, sampling._replace(min_p=None))
        bonus = s.warp(logits, draft, text, sampling)[:, -1]
        return reject(noise, draft, whole.at[:, -1].set(bonus), depth)

    return Specimen(Rule(by_token, verify), options=Options(min_p=0.3))


def penalties_once_a_round() -> Specimen:
    """Symptom: a frequency penalty works less, the better the draft model.

    Hint: which words has the second draft token already to compete with?

    Report: https://github.com/sgl-project/sglang/pull/33643
    """

    def verify(noise, draft, logits, text, sampling, depth):
        nothing = jnp.full((*logits.shape[:2], 1), logits.shape[-1])
        target = s.compute_probs(s.constrain(logits, nothing, text, sampling), sampling)
        return reject(noise, draft, target, depth)

    return Specimen(Rule(by_token, verify), options=Options(frequency_penalty=0.7))


def ratio_at_temperature_one() -> Specimen:
    """Symptom: at temperature 0.5 the text is too adventurous where drafts are accepted.

    Hint: the recovered word is sampled at 0.5; at what were the others compared?

    Report: https://github.com/ohdearquant/lattice/issues/388
    """

    def verify(noise, draft, logits, text, sampling, depth):
        one = sampling._replace(temperature=jnp.ones_like(sampling.temperature))
        p, q = token_probs(draft, s.warp(logits, draft, text, one))
        target = s.warp(logits, draft, text, sampling)
        return accept_prefix(noise.accept[:, 1:] * q < p, noise, draft, target)

    return Specimen(Rule(by_token, verify), options=Options(temperature=0.5))


def grammar_masks_the_first_position_alone() -> Specimen:
    """Symptom: a word that the grammar forbids, always as the second one of a round.

    Hint: what may follow depends on what has just been drafted.

    Report: https://github.com/vllm-project/vllm/pull/34241
    """

    def verify(noise, draft, logits, text, sampling, depth):
        free = s.warp(logits, draft, text, sampling._replace(bad_words=None))
        first = s.warp(logits, draft, text, sampling)[:, 0]
        return reject(noise, draft, free.at[:, 0].set(first), depth)

    return Specimen(Rule(by_token, verify), options=Options(bad_words=((0, 1), (2, 3), (3, 0))))


def placeholder_judged() -> Specimen:
    """Symptom: now and then a word of id 0, at the end of rounds with a short draft.

    Hint: a row that drafts less than K is padded, and the padding has an id too.

    Report: https://github.com/vllm-project/vllm/pull/54137
    """

    def kernel(noise, draft, target, depth):
        return reject(noise, draft._replace(valid=jnp.ones_like(draft.valid)), target, depth)

    return Specimen(probs_rule(kernel), absent=True)


def rows_of_another_request() -> Specimen:
    """Symptom: alone every request is right; in a batch words leak from one text to the next.

    Hint: two orders of one batch.

    Report: https://github.com/vllm-project/vllm/pull/14645
    """

    def kernel(noise, draft, target, depth):
        return reject(noise, draft, jnp.roll(target, 1, axis=0), depth)

    return Specimen(probs_rule(kernel))


def residual_without_the_drafted_token_alone() -> Specimen:
    """Symptom: words that the draft model likes come too often, after a refusal of another one.

    Hint: max(p - q, 0) has as many entries as the vocabulary.

    Report: https://github.com/xLLM-AI/xllm/pull/2175
    """

    def kernel(noise, draft, target, depth):
        p, q = token_probs(draft, target)
        own = jax.nn.one_hot(draft.tokens, target.shape[-1]) * draft.probs
        return accept_prefix(noise.accept[:, 1:] * q < p, noise, draft._replace(probs=own), target)

    return Specimen(probs_rule(kernel))


def draft_ids_mapped_twice() -> Specimen:
    """Symptom: a draft model with its own vocabulary is hardly ever right, and the text is off.

    Hint: a table of offsets is not a table of ids.

    Report: https://github.com/verl-project/verl-SpeCo/pull/67
    """

    def shifted(probs):  # token i is drawn where i - 1 was meant
        return np.roll(probs, 1, axis=-1)

    return Specimen(probs_rule(reject), drawn=shifted)


def distinct_siblings_with_whole_q() -> Specimen:
    """Symptom: a tree's second branch is accepted too often, more so the surer the draft model.

    Hint: the second sibling cannot be the first one again. What was it drawn from?

    Report: arXiv:2402.14160, which is about siblings that are distinct.
    """

    def kernel(noise, draft, target, depth):
        whole = draft.probs.at[:, 2].set(draft.probs[:, 1])
        return descend(noise, draft._replace(probs=whole), target, depth)

    rule = probs_rule(kernel, rejection_tree.draw_noise)
    return Specimen(rule, sound=rejection_tree, siblings=True, replacement=False)


def nought_by_nought_is_accepted() -> Specimen:
    """Symptom: where a grammar leaves the draft model no word, the text's next word has id 0.

    Hint: the argmax of nothing is 0, and a comparison with NaN needs a decision.

    Report: https://github.com/QuixiAI/SlimServe/pull/8
    """

    def first_id(probs):
        return np.broadcast_to(np.arange(probs.shape[-1]) == 0, probs.shape).astype(float)

    def kernel(noise, draft, target, depth):
        q = draft.probs.at[:, :, 0].set(0.0)
        p_token, q_token = token_probs(draft._replace(probs=q), target)
        ratio = jnp.nan_to_num(p_token / q_token, nan=1.0)
        return accept_prefix(noise.accept[:, 1:] < ratio, noise, draft._replace(probs=q), target)

    return Specimen(probs_rule(kernel), drawn=first_id)


def one_coin_for_both() -> Specimen:
    """Symptom: after a refusal, words of low ids come too seldom.

    Hint: what is known of the coin when a token has just been refused?

    Report: https://github.com/sgl-project/sglang/pull/7207
    """

    def kernel(noise, draft, target, depth):
        p, q = token_probs(draft, target)
        accepted = draft.valid[:, 1:] & (noise.accept[:, 1:] * q < p)
        count = jnp.cumprod(accepted, axis=1).sum(axis=1, dtype=jnp.int32)
        coin = jnp.take_along_axis(noise.accept, jnp.minimum(count + 1, depth)[:, None], axis=1)
        here = jnp.take_along_axis(target, count[:, None, None], axis=1)[:, 0]
        child = draft_probs_at(draft, jnp.minimum(count + 1, depth), here.shape[-1])
        left = jnp.maximum(here - jnp.where((count < depth)[:, None], child, 0.0), 0.0)
        below = jnp.cumsum(left, axis=1) <= coin * left.sum(axis=1, keepdims=True)
        last = jnp.minimum(below.sum(axis=1, dtype=jnp.int32), here.shape[-1] - 1)
        return emit_chain(draft, count, last)

    return Specimen(probs_rule(kernel), parts=16)


def cut_after_looking() -> Specimen:
    """Symptom: verifying only the tokens that the draft model is sure of is fast, and biased.

    Hint: a token that is dropped because of what it is was rejected, by a rule without a residual.
    (Greedy drafts, which are certain, can be cut so.)

    Report: https://github.com/vllm-project/vllm/pull/43522
    """

    def kernel(noise, draft, target, depth):
        own = jnp.take_along_axis(draft.probs, draft.tokens[:, :, None], axis=-1)[:, :, 0]
        sure = jnp.cumprod((own > 0.3).at[:, 0].set(True), axis=1) > 0
        return reject(noise, draft._replace(valid=draft.valid & sure), target, depth)

    return Specimen(probs_rule(kernel))


def rejected_token_kept_as_context() -> Specimen:
    """Symptom: a word is missing, and the text goes on as if it stood there.

    Hint: the logits after a rejected token are those of a text that is not written.

    Report: https://github.com/openvinotoolkit/openvino.genai/issues/4190
    """

    def kernel(noise, draft, target, depth):
        p, q = token_probs(draft, target)
        accepted = noise.accept[:, 1:] * q < p
        count = jnp.cumprod(accepted, axis=1).sum(axis=1, dtype=jnp.int32)
        after = jnp.take_along_axis(target, jnp.minimum(count + 1, depth)[:, None, None], axis=1)
        nothing = draft._replace(probs=jnp.zeros_like(draft.probs))
        return emit_chain(draft, count, recover(after[:, 0], after[:, 0], noise, nothing, count))

    return Specimen(probs_rule(kernel))


def recovered_with_the_drafts_noise() -> Specimen:
    """Symptom: drafts are drawn from q, judged and recovered by the book, and 60% is 63%.

    Hint: the draft token was the first in a race. What is known of those that lost it?

    Report: https://github.com/vllm-project/vllm/pull/54282
    """
    drafter = draft_model(markov_target(4), 1, "probabilistic")
    return Specimen(recovered_with_draft_noise(), drafter=drafter, size=4)


def dropped_drafts_drawn_again() -> Specimen:
    """Symptom: block verification is exact for every round, and not for two.

    Hint: how many tokens are accepted depends on those that are dropped.

    Report: specjax until 23 November 2026, found by ``specjax audit joint``.
    """
    return Specimen(
        block,
        sound=block,
        drafter=drafted_by_token_index(2),
        sound_drafter=draft_model(markov_target(2), 2, "probabilistic"),
    )


REPORTED: tuple[Callable[[], Specimen], ...] = (
    min_p_on_the_bonus_token_alone,
    penalties_once_a_round,
    ratio_at_temperature_one,
    grammar_masks_the_first_position_alone,
    placeholder_judged,
    rows_of_another_request,
    residual_without_the_drafted_token_alone,
    draft_ids_mapped_twice,
    distinct_siblings_with_whole_q,
    nought_by_nought_is_accepted,
    one_coin_for_both,
    cut_after_looking,
    rejected_token_kept_as_context,
    recovered_with_the_drafts_noise,
    dropped_drafts_drawn_again,
)
