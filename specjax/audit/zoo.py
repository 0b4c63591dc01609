"""A zoo of broken verifiers: bugs that really happened, each in about ten lines.

Each keeper below makes one ``Specimen``. As a puzzle: read the symptom and then the code, find
the line, and only then the hint. ``examine`` is the audit that catches every one, and that the
sound rule of the same place has to pass.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax import sampling as s
from specjax.audit.cases import random_cases
from specjax.audit.exact import exact_law
from specjax.audit.fresh import reused
from specjax.audit.request import Request, plain_law, plain_request
from specjax.topology import ancestors
from specjax.types import Rule
from specjax.verify.block import block
from specjax.verify.laws import on_laws
from specjax.verify.noise import by_round, by_token, race
from specjax.verify.rejection import drafted, recover, reject, rejection, settle
from specjax.verify.rejection_tree import rejection_tree
from specjax.verify.verdict import emit, emit_chain

SIZE, DEPTH, CASES = 4, 2, 16
SIBLINGS = (0, 0, 0)


class Specimen(NamedTuple):
    """A broken pipeline, and the rule that would be sound in it."""

    rule: Rule
    sound: Rule = rejection
    drawn: Callable | None = None  # from the law that is told to the one drafts come from
    top_k: int | None = None
    frequency_penalty: float | None = None
    siblings: bool = False
    parts: int = 1  # its uniforms interact, and are cut so finely


class Finding(NamedTuple):
    """What the audit says of a rule: worst cases, and zeros up to rounding if it is sound."""

    tv: float
    stray: float
    doubt: float
    reused: float


def examine(specimen: Specimen, *, sound: bool = False) -> Finding:
    """Audit a specimen, or the rule that would be sound in its place."""
    if sound:
        specimen = specimen._replace(rule=specimen.sound, drawn=None, parts=1)
    p_tree, q_tree = random_cases(CASES, SIZE, DEPTH)
    request = None
    if specimen.top_k or specimen.frequency_penalty:
        request = demanding_request(p_tree.shape, specimen.top_k, specimen.frequency_penalty)
        p_tree = plain_law(request)
    law = exact_law(
        specimen.rule,
        p_tree,
        q_tree,
        1 if specimen.siblings else DEPTH,
        parents=SIBLINGS if specimen.siblings else None,
        drawn=None if specimen.drawn is None else specimen.drawn(q_tree),
        request=request,
        parts=specimen.parts,
    )
    parents = SIBLINGS if specimen.siblings else (0, 0, 1)
    return Finding(
        *(float(worst.max()) for worst in (law.tv, law.stray, law.doubt)),
        reused=reused(specimen.rule, parents=parents, size=SIZE, rounds=CASES * SIZE**2),
    )


def demanding_request(
    shape: tuple[int, ...], top_k: int | None, frequency_penalty: float | None
) -> Request:
    """Make a request that cuts off or penalises, and has written something already."""
    plain = plain_request(np.ones(shape), 3 + DEPTH)
    written = plain.text.tokens.at[0, :3].set(jnp.asarray([1, 0, 2]))
    text = plain.text._replace(tokens=written, lengths=jnp.full(1, 3, jnp.int32))
    sampling, none = plain.sampling, jnp.zeros(1)
    if top_k:
        sampling = sampling._replace(top_k=jnp.full(1, top_k, jnp.int32))
    if frequency_penalty:
        penalties = s.Penalties(none + 1.0, none, none + frequency_penalty)
        sampling = sampling._replace(penalties=penalties)
    return Request(np.random.default_rng(0).normal(size=shape), text, sampling)


def draft_ignores_temperature() -> Specimen:
    """Symptom: at temperature 0.5 the text is too adventurous; at 1 all is well.

    Hint: q has to be the law that was drawn from, not the one that should have been.
    """

    def softmax_of_logits(told):  # told: softmax(logits / 0.5)
        return told**0.5 / (told**0.5).sum(axis=-1, keepdims=True)

    return Specimen(rejection, drawn=softmax_of_logits)


def argmax_draft_with_softmax_q() -> Specimen:
    """Symptom: the draft model's favourite word comes too seldom, and acceptance looks fine.

    Hint: how often does a greedy drafter propose its second choice?
    """

    def always_the_likeliest(told):
        return np.eye(told.shape[-1])[told.argmax(axis=-1)]

    return Specimen(rejection, drawn=always_the_likeliest)


def position_shifted_q() -> Specimen:
    """Symptom: with a draft model that repeats its law all is well; else the text is off.

    Hint: ``probs[:, i]`` is the law node i was drawn from, not the law after it.
    """

    def kernel(noise, draft, target, depth):
        return reject(noise, draft._replace(probs=jnp.roll(draft.probs, 1, axis=1)), target, depth)

    return Specimen(on_laws(kernel))


def filter_after_the_ratio() -> Specimen:
    """Symptom: with top_k = 2 a third word comes, but only where the draft model proposes it.

    Hint: which law has the accepted token been compared with?
    """

    def verify(noise, draft, logits, text, sampling, depth):
        whole = s.warp(logits, draft, text, sampling._replace(top_k=None))
        p, q = drafted(draft, whole)
        filtered = s.warp(logits, draft, text, sampling)
        return settle(noise.accept[:, 1:] * q < p, noise, draft, filtered)

    return Specimen(Rule(by_token, verify), top_k=2)


def residual_before_the_filter() -> Specimen:
    """Symptom: with top_k = 2 a third word comes, but only just after a refusal.

    Hint: p has to be the same p in both halves of the rule.
    """

    def verify(noise, draft, logits, text, sampling, depth):
        p, q = drafted(draft, s.warp(logits, draft, text, sampling))
        whole = s.warp(logits, draft, text, sampling._replace(top_k=None))
        return settle(noise.accept[:, 1:] * q < p, noise, draft, whole)

    return Specimen(Rule(by_token, verify), top_k=2)


def recovered_from_p() -> Specimen:
    """Symptom: words that both models like come too often.

    Hint: what min(p, q) has given already must not be given again.
    """

    def kernel(noise, draft, target, depth):
        p, q = drafted(draft, target)
        unknown = draft._replace(probs=jnp.zeros_like(draft.probs))
        return settle(noise.accept[:, 1:] * q < p, noise, unknown, target)

    return Specimen(on_laws(kernel))


def accepts_at_equality() -> Specimen:
    """Symptom: once in eight million tokens, a word of probability zero.

    Hint: a float32 uniform can be 0, and 0 * q <= 0.
    """

    def kernel(noise, draft, target, depth):
        p, q = drafted(draft, target)
        return settle(noise.accept[:, 1:] * q <= p, noise, draft, target)

    return Specimen(on_laws(kernel))


def bonus_from_the_wrong_row() -> Specimen:
    """Symptom: after a round that accepted everything, the next word does not fit.

    Hint: K draft tokens have K + 1 rows of logits.
    """

    def kernel(noise, draft, target, depth):
        return reject(noise, draft, target.at[:, -1].set(target[:, -2]), depth)

    return Specimen(on_laws(kernel))


def first_token_unverified() -> Specimen:
    """Symptom: mean acceptance length never falls under 2, and the text is the draft model's.

    Hint: the token that the drafter starts from is verified; its first own token is not.
    """

    def kernel(noise, draft, target, depth):
        p, q = drafted(draft, target)
        accepted = (noise.accept[:, 1:] * q < p).at[:, 0].set(True)
        return settle(accepted, noise, draft, target)

    return Specimen(on_laws(kernel))


def noise_reused_between_rounds() -> Specimen:
    """Symptom: every single round is exact, yet long texts are too lucky or too unlucky.

    Hint: what names a number has to change when the text has grown.
    """

    def address(keys, text, draft, sampling, vocab_size):
        return by_token(keys, text._replace(lengths=text.starts), draft, sampling, vocab_size)

    return Specimen(Rule(address, rejection.verify))


def block_addressed_by_token() -> Specimen:
    """Symptom: as before, but only after a round that threw accepted tokens away.

    Hint: block verification looks at uniforms of places that it does not reach.
    """
    return Specimen(Rule(by_token, block.verify), sound=block)


def block_by_products_of_uniforms() -> Specimen:
    """Symptom: "block verification" accepts far more than before, and the text is worse.

    Hint: with two uniforms, P(u1 * u2 < w) is not w. And what is left after prefix i?
    """

    def kernel(noise, draft, target, depth):
        p, q = drafted(draft, target)
        worth = jnp.cumprod(p / jnp.maximum(q, 1e-30), axis=1)
        passed = jnp.cumprod(noise.accept[:, 1:], axis=1) < worth
        count = jnp.where(passed, jnp.arange(1, depth + 1)[None], 0).max(axis=1).astype(jnp.int32)
        here = jnp.take_along_axis(target, count[:, None, None], axis=1)[:, 0]
        return emit_chain(draft, count, recover(here, here, noise, draft, count))

    return Specimen(on_laws(kernel, by_round), sound=block, parts=8)


def penalties_count_the_root_twice() -> Specimen:
    """Symptom: with a frequency penalty, words follow themselves less often than in plain text.

    Hint: the root is the last token of the text.
    """

    def verify(noise, draft, logits, text, sampling, depth):
        path = jnp.where(ancestors(draft.parents), draft.tokens[:, None], logits.shape[-1])
        law = s.law(s.constrain(logits, path, text, sampling), sampling)
        return reject(noise, draft, law, depth)

    return Specimen(Rule(by_token, verify), frequency_penalty=0.7)


def residual_not_normalised() -> Specimen:
    """Symptom: with two siblings per level the second is hardly ever accepted.

    Hint: after a refusal what is left of p sums to less than 1, and q does not.
    """
    return Specimen(
        two_siblings(lambda p, q: jnp.maximum(p - q, 0.0)), rejection_tree, siblings=True
    )


def siblings_all_against_p() -> Specimen:
    """Symptom: with two siblings per level the text drifts to what the draft model likes.

    Hint: the second sibling is only asked when the first was refused.
    """
    return Specimen(two_siblings(lambda p, q: p), rejection_tree, siblings=True)


def two_siblings(leave: Callable) -> Rule:
    """Try two children of the root; ``leave``(p, q) is what a refused one leaves of p."""

    def kernel(noise, draft, target, depth):
        rest, node, none = target[:, 0], draft.parents[:, 0], jnp.zeros_like(draft.parents[:, :1])
        for child in (1, 2):
            token, q = draft.tokens[:, child, None], draft.probs[:, child]
            p_token, q_token = (jnp.take_along_axis(one, token, axis=1)[:, 0] for one in (rest, q))
            accepted = (node == 0) & (noise.accept[:, child] * q_token < p_token)
            node, rest = jnp.where(accepted, child, node), leave(rest, q)
        after = jnp.take_along_axis(target, node[:, None, None], axis=1)[:, 0]
        last = race(jnp.where((node > 0)[:, None], after, rest), noise, node)
        return emit(
            draft, jnp.concatenate([none, node[:, None]], 1), (node > 0).astype(jnp.int32), last
        )

    return on_laws(kernel, by_round)


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
)
