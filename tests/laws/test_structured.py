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
from specjax.engine.grammar import EVERYTHING, GrammarState
from specjax.engine.options.structured_outputs import StructuredOutputsParams
from specjax.models.toy import markov_target
from specjax.verify.block import block
from specjax.verify.rejection import rejection
from specjax.verify.rejection_tree import rejection_tree
from tests.laws import grammars as g
from tests.laws import harness as h

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


def keep_rejected(self):
    """The state does not come back from a draft's path."""


def forget_bonus(masks):
    """The bonus token is chosen without a mask."""

    def wrong(self, nodes, words):
        masks(self, nodes, words)
        last = np.flatnonzero(nodes.valid)[-1]
        if last:
            words[last] = EVERYTHING

    return wrong


def next_row(row_of):
    """A row has the draft of the one after it: padded rows are counted, or not."""

    def wrong(nodes, slot):
        return row_of(nodes, (slot + 1) % len(nodes.tokens))

    return wrong


SPECIMENS = {
    "the state is not rolled back": (GrammarState, "_leave", lambda _: keep_rejected),
    "the bonus token is not masked": (GrammarState, "masks", forget_bonus),
    "rows are counted otherwise than slots": (masked_round, "row_of", next_row),
}


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


def test_every_text_that_ends_fits_its_schema():
    """Random schemas at T = 1.5; 2,000 of them in ``tests/engine/test_schemas.py``."""
    ended, count = g.fitting(["ngram", "draft_model coupled"], 48)
    assert ended >= 0.9 * count
