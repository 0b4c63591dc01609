"""Drafter and rule together, over two rounds: enumerated, and against what is known otherwise."""

import jax
import numpy as np
import pytest

from specjax.audit.joint import joint
from specjax.audit.pairs import REQUESTS, certify_all, request, shipped_pairs, tables
from specjax.audit.races import below, inner_points, region_of, whole, won_by
from specjax.audit.rules import ROUNDING
from specjax.audit.zoo_engines import keys_of_rejected_tokens_kept, recurrent_state_not_rolled_back
from specjax.audit.zoo_pairs import drafted_by_token_index, recovered_with_draft_noise
from specjax.core import sampling as s
from specjax.core.types import Params, Rule
from specjax.drafters.draft_model import draft_model
from specjax.drafters.grow import pick
from specjax.models.toy import attentive_target, markov_target, recurrent_target
from specjax.verify import noise as v
from specjax.verify.rejection import rejection
from specjax.verify.walk import walk

MODEL = markov_target(2)
TARGET, DRAFT = tables(2)
PARAMS = Params(TARGET, DRAFT)


def test_races_among_the_same_numbers_have_the_probability_of_many_draws():
    rng = np.random.default_rng(0)
    first, second = rng.dirichlet(np.ones(4), 2)
    numbers = rng.exponential(size=(400_000, 4))
    winners = [np.argmin(numbers / weights, axis=1) for weights in (first, second)]
    total = 0.0
    for i in range(4):
        one = won_by(whole(4), first, i, ())
        assert one.mass == pytest.approx(first[i], abs=1e-12)
        for j in range(4):
            both = won_by(one, second, j, ())
            total += both.mass
            seen = np.mean((winners[0] == i) & (winners[1] == j))
            assert both.mass == pytest.approx(seen, abs=0.004)
            for point in inner_points(both) if both.mass else ():
                assert (np.argmin(point / first), np.argmin(point / second)) == (i, j)
    assert total == pytest.approx(1, abs=1e-12)


def test_a_cut_loses_and_gains_no_volume():
    rng = np.random.default_rng(1)
    known = whole(4)
    for _ in range(6):
        normal = rng.normal(size=4)
        sides = [region_of(below(known.simplices, sign * normal)) for sign in (1, -1)]
        assert sides[0].mass + sides[1].mass == pytest.approx(known.mass, abs=1e-12)
        known = max(sides, key=lambda side: side.mass)


def test_coupled_drafts_share_their_noise_and_leave_the_text_as_it_is():
    found = joint(draft_model(MODEL, 2, "coupled"), walk, PARAMS)
    assert max(found.tv, found.carried) < ROUNDING
    assert found.doubt == 0
    assert found.rereads == pytest.approx(2)  # by design, in both rounds


def test_requests_of_every_kind_have_the_distribution_of_plain_decoding():
    kinds = ("plain", "top_p 0.7", "penalties", "stop after 3", "bad words", "K = 1")
    drafter = draft_model(markov_target(3), 2, "probabilistic")
    params = Params(*tables(3))
    lengths = []
    for kind in kinds:
        found = joint(drafter, rejection, params, sampling=request(3, **REQUESTS[kind]))
        assert max(found.tv, found.carried) < ROUNDING, kind
        assert found.doubt == found.rereads == 0, kind
        lengths.append(found.expected_length)
    assert len(set(lengths)) == len(kinds)  # each changes what is written
    assert max(lengths[-1]) <= 2


def test_a_target_with_a_cache_is_enumerated_with_it():
    """Two targets of one distribution by two mechanisms, sound and with the same fault."""
    drafter, sound, broken = draft_model(MODEL, 2, "probabilistic"), [], []
    for keeper, target in (
        (keys_of_rejected_tokens_kept, attentive_target(2)),
        (recurrent_state_not_rolled_back, recurrent_target(2)),
    ):
        specimen = keeper()
        sound.append(joint(drafter, rejection, PARAMS, target=target))
        broken.append(
            joint(
                drafter, rejection, PARAMS, target=specimen.target or target, reference=target,
                step=specimen.step,
            )
        )  # fmt: skip
    assert all(max(found.tv, found.carried) < ROUNDING for found in sound)
    assert all(found.tv > 0.01 for found in broken)
    assert all(found.doubt == 0 for found in (*sound, *broken))
    markov = joint(drafter, rejection, PARAMS)
    assert abs(markov.target - sound[0].target).sum() > 0.1
    for one, other in (sound, broken):
        np.testing.assert_allclose(one.target, other.target, atol=1e-6)
        np.testing.assert_allclose(one.joint, other.joint, atol=1e-6)


def test_drafts_drawn_by_token_index_are_exact_where_nothing_looks_past_a_rejection():
    """Beside the zoo's specimen: their noise is drawn again under ``rejection`` too."""
    found = joint(drafted_by_token_index(2), rejection, PARAMS)
    assert found.rereads > 0.5
    assert max(found.tv, found.carried) < ROUNDING
    assert found.doubt == 0


def test_how_far_shared_noise_leads_is_what_many_draws_show():
    """A recovered token drawn with the draft's own noise (vLLM pull request 54282)."""
    p, q = np.array([0.1, 0.6, 0.3]), np.array([0.7, 0.25, 0.05])
    params = Params(np.log([p] * 3), np.log([q] * 3))
    drafter = draft_model(markov_target(3), 1, "probabilistic")
    found = joint(drafter, recovered_with_draft_noise(), params, rounds=1)
    first = found.joint.reshape(3, 3).sum(axis=1)
    assert found.doubt == 0
    assert found.rereads > 0.1
    assert found.tv > 0.02
    rng, many = np.random.default_rng(0), 300_000
    numbers = rng.exponential(size=(many, 3))
    drafted = np.argmin(numbers / q, axis=1)
    recovered = np.argmin(numbers[:, 1:] / (p - q)[1:], axis=1) + 1
    accepted = rng.random(many) * q[drafted] < p[drafted]
    seen = np.bincount(np.where(accepted, drafted, recovered), minlength=3) / many
    assert np.abs(first - seen).max() < 0.004


def test_a_drafter_that_reads_a_number_twice_is_refused():
    inner = draft_model(MODEL, 2, "probabilistic")

    def propose(params, state, text, sampling, keys, window):
        draft, state = inner.propose(params, state, text, sampling, keys, window)
        token = draft.tokens[:, 1:2]
        keys = s.noise_keys(keys, text.lengths[:, None], s.PROPOSE)[:, 0]
        again, _ = pick(  # with the noise of the token before
            params[token], token[:, :, None], 0, text, sampling, keys, "probabilistic", 1
        )
        return draft._replace(tokens=draft.tokens.at[:, 2].set(again[:, 0, 0])), state

    with pytest.raises(ValueError, match="do not come from one race each"):
        joint(inner._replace(propose=propose), rejection, PARAMS, rounds=1)


def test_a_key_that_is_split_is_refused_with_the_remedy():
    def split(keys, text, draft, sampling, vocab_size):
        keys = jax.vmap(lambda key: jax.random.split(key)[0])(keys)
        return v.by_token(keys, text, draft, sampling, vocab_size)

    with pytest.raises(ValueError, match=r"use jax\.random\.fold_in"):
        joint(draft_model(MODEL, 1), Rule(split, rejection.verify), PARAMS, rounds=1)


def test_every_drafter_that_samples_is_in_the_table():
    names = [pair.name for pair in shipped_pairs()]
    assert len(set(names)) == len(names) == 31
    with pytest.raises(
        ValueError, match="there is no 'eagle5': choose from draft_model, rejection"
    ):
        next(certify_all(["eagle5"]))
