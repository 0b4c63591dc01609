"""Compositions keep the laws: a drafter with a fallback, and one that itself speculates."""

import jax
import numpy as np
import pytest

from specjax.core.types import Engine, Observation, Params
from specjax.drafters.draft_model import draft_model
from specjax.drafters.fallback import Both, fallback
from specjax.drafters.hierarchical import hierarchical
from specjax.drafters.ngram import ngram
from specjax.testing.laws import LAWS
from specjax.testing.subject import Subject, long_rows, of_drafter
from specjax.verify.walk import walk
from tests.laws import harness as h

MODEL = h.weights().draft
NGRAM = ngram(3, 3, 2)
COMPOSED = {
    "n-gram, then a draft model": (
        fallback(NGRAM, h.CHAINS["draft_model greedy"]),
        Both(None, MODEL),
    ),
    "n-gram, then a tree": (fallback(ngram(4, 3, 2), h.GROWN["draft_model best"]), Both((), MODEL)),
    "sampled where no n-gram matches": (
        fallback(NGRAM, draft_model(h.TARGET, h.K, "probabilistic")),
        Both(None, MODEL),
    ),
    "a draft model with n-grams": (
        hierarchical(Engine(h.TARGET, NGRAM, walk, 0), h.K),
        Params(MODEL, None),
    ),
    "a draft model with a draft model": (
        hierarchical(Engine(h.TARGET, h.CHAINS["draft_model greedy"], walk, 0), h.K),
        Params(MODEL, MODEL),
    ),
}
LAWS_OF = [  # those that a composition could break, where its parts keep them
    *((name, "bitwise") for name in COMPOSED),
    *((name, "observe") for name in ("n-gram, then a tree", "a draft model with n-grams")),
    *((name, "in place") for name in ("n-gram, then a draft model", "a draft model with n-grams")),
    ("n-gram, then a tree", "well formed"),
    ("a draft model with n-grams", "room"),
    ("sampled where no n-gram matches", "exact"),
]


def subject(name: str) -> Subject:
    drafter, params = COMPOSED[name]
    return of_drafter(drafter, lambda target: params)


@pytest.mark.parametrize(("name", "law"), LAWS_OF)
def test_compositions_keep_the_laws(name, law):
    LAWS[law](subject(name))


@pytest.mark.parametrize("inner", [NGRAM, h.CHAINS["draft_model greedy"]], ids=["ngram", "model"])
def test_a_draft_model_that_speculates_drafts_what_it_would_draft_token_by_token(inner):
    own = Params(MODEL, MODEL if inner is not NGRAM else None)
    drafter = hierarchical(Engine(h.TARGET, inner, walk, 0), h.K)
    params = Params(h.tiny_weights(), own)
    found = h.run(drafter, long_rows(), params=params, lean=True)
    expected = h.run(h.CHAINS["draft_model greedy"], long_rows(), lean=True)
    np.testing.assert_array_equal(found.infos.drafted, expected.infos.drafted)


def test_the_fallback_drafts_where_the_first_finds_nothing_and_only_there():
    first, second = ngram(h.K, 3, 1), h.CHAINS["draft_model greedy"]
    drafter, params = fallback(first, second), Params(h.tiny_weights(), Both(None, MODEL))
    engine, state = of_drafter(drafter, lambda target: params.draft).start(long_rows())
    states = {
        name: of_drafter(one, lambda target: MODEL).start(long_rows())[1].drafter
        for name, one in (("first", first), ("second", second))
    }
    rest = state.text, state.sampling, state.keys, engine.window

    def drafted(one, own, weights):
        return jax.device_get(one.propose(weights, own, *rest)[0])

    both = drafted(drafter, state.drafter, params.draft)
    ours = drafted(first, states["first"], None)
    theirs = drafted(second, states["second"], MODEL)
    hit = ours.valid[:, 1:].any(axis=1)
    assert hit.any()
    assert not hit.all()
    np.testing.assert_array_equal(both.valid[hit], ours.valid[hit])
    np.testing.assert_array_equal(both.tokens[~hit], theirs.tokens[~hit])
    for name in ("tokens", "valid"):
        assert getattr(both, name).shape == getattr(theirs, name).shape


def test_each_of_two_drafters_is_shown_the_layers_that_it_reads():
    def reading(*taps):
        return NGRAM._replace(
            taps=taps, observe=lambda params, state, text, observation, window: observation.taps
        )

    third = fallback(reading(2), reading(1, 4))
    both = fallback(third, reading(3))
    assert (third.taps, both.taps) == ((1, 2, 4), (1, 2, 3, 4))
    shown = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)  # [B, P, A, D]
    empty = Both(Both(None, None), None)
    seen = both.observe(empty, empty, None, Observation(None, None, shown, None, None), 0)
    for found, layers in ((seen.first.first, [1]), (seen.first.second, [0, 3]), (seen.second, [2])):
        np.testing.assert_array_equal(found, shown[:, :, layers])
