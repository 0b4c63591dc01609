"""Law 1 under a grammar: the text of plain constrained decoding, bit for bit, and it parses.

Law 2 under a grammar: the ratio rules have the distribution of the masked target.
"""

import functools
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.audit.joint import joint
from specjax.audit.pairs import tables
from specjax.audit.rules import ROUNDING
from specjax.core import constrained
from specjax.core.types import Params, Rule
from specjax.drafters.draft_model import draft_model
from specjax.drafters.tree import fixed
from specjax.engine import masked_round
from specjax.engine.grammar import EVERYTHING, GrammarState, num_words
from specjax.engine.options.structured_outputs import StructuredOutputsParams
from specjax.models.toy import markov_target
from specjax.verify.block import block
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree
from tests.laws import grammars as g
from tests.laws import harness as h
from tests.laws import structured

OBJECT = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "ab": {"type": "array", "items": {"enum": ["abc", "b", None]}, "maxItems": 4},
        "cd": {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 6}]},
    },
    "required": ["a", "ab", "cd"],
    "additionalProperties": False,
}
REGEX, CHOICE = r"(ab|12)+:[0-9]{2,5}", ("true", "tuna", "ab12")
FORMS: dict[str, Any] = {
    "schema": g.json_form(OBJECT),
    "regex": StructuredOutputsParams(regex=REGEX),
    "choice": StructuredOutputsParams(choice=CHOICE),
    "ebnf": StructuredOutputsParams(grammar='root ::= "[" item ("," item)* "]"\nitem ::= [a-c]+'),
    "lark": StructuredOutputsParams(grammar='start: "[" (start | /[0-9]/)* "]"'),
    "none": None,
}
CHAINS = ("ngram", "suffix", "draft_model coupled", "eagle3", "mtp", "medusa")
REQUESTS = [
    g.request(i, form, temperature, **more)
    for i, (form, temperature, more) in enumerate(
        [(form, temperature, {}) for form in FORMS.values() for temperature in (0.0, 1.5)]
        + [
            (FORMS["schema"], 1.0, {"top_p": 0.8, "repetition_penalty": 1.2}),
            (FORMS["schema"], 1.5, {"extra_args": {"num_speculative_tokens": 1}}),
            (FORMS["choice"], 1.0, {"min_tokens": 9}),
            (FORMS["regex"], 1.0, {"allowed_token_ids": [g.EOS, 30, 38]}),
        ]
    )
]


@functools.cache
def plain():
    return g.complete(h.PLAIN, REQUESTS)


def law(drafter, params=None):
    """Raise AssertionError if a drafter changes a text under a grammar, or one does not parse."""
    found = g.complete(drafter, REQUESTS, params)
    g.same(found, plain())
    for state, request in zip(found, REQUESTS, strict=True):
        if request.params.structured_outputs is FORMS["schema"]:
            g.parses(state, OBJECT)
    return found


def test_plain_constrained_texts_have_their_form():
    for state in plain():
        form, text = state.request.params.structured_outputs, g.text_of(state)
        if form is not None and state.finish_reason == "stop":
            assert state.tokens[-1] == g.EOS
        if form is FORMS["regex"] and state.finish_reason == "stop":
            assert re.fullmatch(REGEX, text)
        if form is FORMS["choice"]:
            assert text in CHOICE  # min_tokens=9 does not delay the end
    assert sum(g.parses(one, OBJECT) for one in plain()[:2]) >= 1
    assert {one.finish_reason for one in plain()} == {"stop", "length"}


@pytest.mark.parametrize("name", CHAINS)
def test_no_chain_drafter_changes_a_constrained_text(name):
    found = law(h.CHAINS[name])
    assert sum(one.num_accepted for state in found for one in state.rounds) > 0


@pytest.mark.parametrize("name", ["draft_model best", "eagle3"])
def test_no_tree_drafter_changes_a_constrained_text(name):
    law(h.GROWN[name])


@pytest.mark.parametrize("name", ["bush"])
def test_no_tree_that_knows_the_text_changes_it(name):
    rows = [h.Row(one.prompt, g.LIMIT, one.seed) for one in REQUESTS[:4]]
    nothing: Any = None
    truth = h.Result([one.tokens for one in plain()[:4]], [], [], nothing, 0, nothing)
    for skill in (0.5, 0.95):
        params = h.knowing(truth, rows, skill)
        found = g.complete(h.guided(h.TREES[name]), REQUESTS[:4], params)
        g.same(found, plain()[:4])
        assert sum(one.num_accepted for state in found for one in state.rounds) > 10


def test_neither_slots_nor_a_step_ahead_change_a_constrained_text():
    for slots, ahead in ((1, False), (3, True)):
        g.same(g.complete(h.CHAINS["ngram"], REQUESTS, slots=slots, ahead=ahead), plain())


def test_a_mask_that_allows_everything_changes_no_bit():
    free = [g.request(100 + i, None, 1.5 * (i % 2)) for i in range(4)]
    expected = g.complete(h.CHAINS["ngram"], free)
    beside = [*free[:3], REQUESTS[0], free[3]]
    found = g.complete(h.CHAINS["ngram"], beside)
    g.same([*found[:3], found[4]], expected)


def test_forced_tokens_are_drafted_for_nothing():
    form = StructuredOutputsParams(choice=["true" * 9])
    (found,) = g.complete(h.CHAINS["ngram"], [g.request(0, form)])
    assert g.text_of(found) == "true" * 9
    assert sum(one.num_accepted for one in found.rounds) >= len(found.tokens) - len(found.rounds)
    assert len(found.rounds) <= 1 + -(-len(found.tokens) // (h.K + 1))


def keep_rejected(self, count):
    """The state does not come back from a draft's path."""


def forget_bonus(masks):
    """The bonus token is chosen without a mask."""

    def wrong(self, nodes, words):
        masks(self, nodes, words)
        last = np.flatnonzero(nodes.valid)[-1]
        if last:
            words[last] = EVERYTHING

    return wrong


def root_alone(masks):
    """Only the first position of a round has a mask."""

    def wrong(self, nodes, words):
        masks(self, nodes, words)
        words[1:] = EVERYTHING

    return wrong


def without_bonus(follow):
    """The last token of a round, which was not drafted, does not enter the state."""

    def wrong(self, tokens):
        follow(self, tokens[:-1])

    return wrong


def next_row(row_of):
    """A row has the draft of the one after it: padded rows are counted, or not."""

    def wrong(nodes, slot):
        return row_of(nodes, (slot + 1) % len(nodes.tokens))

    return wrong


def no_masks(group, num_rows, vocab_size):
    """The first token of an answer is chosen without a mask."""


SPECIMENS = {
    "the state is not rolled back": (GrammarState, "_leave", lambda _: keep_rejected),
    "the bonus token is not masked": (GrammarState, "masks", forget_bonus),
    "only the first position is masked": (GrammarState, "masks", root_alone),
    "the bonus token does not enter the state": (GrammarState, "follow", without_bonus),
    "the prompt's token is not masked": (masked_round, "first_masks", lambda _: no_masks),
    "rows are counted otherwise than slots": (masked_round, "row_of", next_row),
}


def allows(grammar, tokens):
    """Return whether a grammar allows the last of some tokens after the others."""
    state, words = grammar.start(), np.full((1, num_words(h.VOCAB)), EVERYTHING, np.int32)
    state.follow(tokens[:-1])
    state.masks(masked_round.ROOT, words)
    return bool(words[0, tokens[-1] // 32] >> tokens[-1] % 32 & 1)


@pytest.mark.parametrize("name", ["draft_model coupled", "draft_model, best tree", "rejection"])
def test_the_target_reads_no_draft_that_the_grammar_forbids(name, monkeypatch):
    """Sampled drafts that are cut stay before the rule, which rejects them; others are gone."""
    arm, seen, cut = {**structured.ARMS, **structured.RATIO}[name], [], constrained.cut

    def spy(draft, tokens, allowed):
        new, present = cut(draft, tokens, allowed)
        seen.append([np.asarray(one[0]) for one in (tokens, draft.parents, present, draft.valid)])
        judged = draft.valid if draft.probs is not None else present
        np.testing.assert_array_equal(new.valid, judged)
        return new, present

    monkeypatch.setattr(constrained, "cut", spy)
    (state,) = g.complete(arm.drafter, REQUESTS[1:2], rule=arm.rule, slots=1)
    num_read = num_cut = num_committed = 0
    for one, (tokens, parents, present, valid) in zip(state.rounds, seen, strict=False):
        num_committed += len(one.tokens)
        paths = {0: state.tokens[:num_committed]}
        for node in np.flatnonzero(present)[1:].tolist():
            paths[node] = [*paths[int(parents[node])], int(tokens[node])]
            assert allows(state.request.grammar, paths[node])
        num_read += len(paths) - 1
        num_cut += int((valid & ~present).sum())
    assert len(seen) == len(state.rounds) - 1
    assert num_read > 0
    assert num_cut > 0


@pytest.mark.parametrize("name", SPECIMENS)
def test_the_law_sees_the_bugs_that_engines_had(name, monkeypatch):
    owner, attribute, break_it = SPECIMENS[name]
    plain()
    monkeypatch.setattr(owner, attribute, break_it(getattr(owner, attribute)))
    with pytest.raises(AssertionError):
        law(h.CHAINS["draft_model coupled"])


SIZE = 3
ALLOWED = np.array([[True, False, True], [True, True, False], [False, True, True]])  # after each
BITS = (ALLOWED * (1 << np.arange(SIZE))).sum(axis=1).astype(np.int32)
RAW, DRAFT = tables(SIZE)
MASKED = np.where(ALLOWED, RAW, -1e33)


def under_grammar(rule, cut=constrained.cut):
    """A rule under the grammar ``ALLOWED``: it takes raw logits, masks, and the draft cut."""

    def verify(noise, draft, logits, text, sampling, depth):
        may, bits = jnp.asarray(ALLOWED), jnp.asarray(BITS)
        columns = [jnp.ones_like(draft.valid[:, 0])]
        for node in range(1, draft.tokens.shape[1]):
            parent = draft.parents[:, node]
            before = jnp.take_along_axis(draft.tokens, parent[:, None], axis=1)[:, 0]
            above = jnp.take_along_axis(jnp.stack(columns, axis=1), parent[:, None], axis=1)[:, 0]
            columns.append(above & draft.valid[:, node] & may[before, draft.tokens[:, node]])
        draft, _ = cut(draft, draft.tokens, jnp.stack(columns, axis=1))
        raw = jnp.asarray(RAW, jnp.float32)[draft.tokens]
        mask = bits[draft.tokens][:, :, None]
        return rule.verify(noise, draft, raw, text, sampling._replace(mask=mask), depth)

    return Rule(rule.draw_noise, verify)


PAIRS = {
    "rejection": (draft_model(markov_target(SIZE), 2, "probabilistic"), rejection),
    "block": (draft_model(markov_target(SIZE), 2, "probabilistic"), block),
    "rejection_tree": (
        draft_model(markov_target(SIZE), fixed([(0,), (1,)]), "probabilistic"), rejection_tree,
    ),
    "greedy drafts": (draft_model(markov_target(SIZE), 2), rejection),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_the_ratio_rules_have_the_masked_targets_distribution(name):
    drafter, rule = PAIRS[name]
    found = joint(drafter, under_grammar(rule), Params(MASKED, DRAFT))
    assert max(found.tv, found.carried) < ROUNDING
    assert found.doubt == 0


def test_sampled_drafts_that_are_cut_change_the_distribution():
    """What cutting them does, with the nodes gone: the rule then samples p, not max(p - q, 0)."""

    def gone(draft, tokens, allowed):
        return draft._replace(valid=allowed), allowed

    drafter, rule = PAIRS["rejection"]
    found = joint(drafter, under_grammar(rule, gone), Params(MASKED, DRAFT))
    assert found.tv > 0.01


@pytest.mark.parametrize(
    ("names", "count"),
    [(("ngram", "rejection"), 16), (structured.EVERY, 24)],
    ids=["few", "every"],
)
def test_random_schemas_hold_with_every_drafter(names, count):
    """Random schemas at T = 1.5; 2,000 of them by ``make structured``."""
    for name, tally in structured.compare(0, count, names).items():
        assert tally.faults == [], name
        assert tally.ended >= 0.95 * tally.texts
        assert (tally.accepted > 0) == (name != "plain")
