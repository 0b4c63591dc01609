"""Every bug of the zoo is caught, and the sound rule in its place is not."""

import inspect

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import norm

from specjax.audit.joint import joint
from specjax.audit.specimen import examine, random_tables, samples_to_convict
from specjax.audit.zoo import ZOO
from specjax.audit.zoo_engines import ENGINES
from specjax.audit.zoo_pairs import recovered_with_draft_noise, shared_noise_distribution
from specjax.core.types import Params
from specjax.drafters.draft_model import draft_model
from specjax.models.toy import markov_target


@pytest.mark.parametrize("keeper", ZOO, ids=lambda keeper: keeper.__name__)
def test_the_audit_catches_every_bug_and_only_bugs(keeper):
    specimen = keeper()
    found, sound = examine(specimen), examine(specimen, sound=True)
    least = 0.04 if specimen.drafter is None else 1e-3
    assert found.tv - found.doubt > least or found.stray > 0 or found.reused > 0.05, found
    assert found.by
    assert max(sound.tv, sound.doubt) < 1e-6, sound
    assert sound.stray == sound.reused == sound.samples == 0, sound
    assert not sound.by


def test_every_specimen_is_a_short_puzzle_with_a_hint():
    assert len({keeper.__name__ for keeper in ZOO}) == len(ZOO) == 35
    for keeper in ZOO:
        puzzle, lines = inspect.getdoc(keeper) or "", inspect.getsource(keeper).splitlines()
        assert puzzle.startswith("Symptom: ")
        assert "\n\nHint: " in puzzle
        assert "\n\nReport: " in puzzle, keeper.__name__
        most = 24 if keeper in ENGINES else 16  # their fault is a function of its own
        assert len(lines) - len(puzzle.splitlines()) <= most, keeper.__name__


def test_the_number_of_texts_that_convict_is_that_of_a_closed_form():
    fair, biased = np.array([0.5, 0.5]), np.array([0.6, 0.4])
    assert samples_to_convict(fair, fair) == 0
    n = samples_to_convict(fair, biased)
    assert 0.04 * n == pytest.approx((norm.ppf(0.995) + norm.ppf(0.9)) ** 2, rel=0.01)
    assert samples_to_convict(np.array([1.0, 0.0]), biased) == 5  # 1 - 0.6 ** 5 > 0.9


def test_shared_noise_has_the_distribution_of_its_closed_form():
    target, draft = random_tables(4)
    drafter = draft_model(markov_target(4), 1, "probabilistic")
    rule, tables = recovered_with_draft_noise(), Params(target, draft)
    found = joint(drafter, rule, tables, rounds=1)
    first, plain = (one.reshape(4, 4).sum(axis=1) for one in (found.joint, found.target))
    root = int(abs(softmax(target, axis=1) - plain).sum(axis=1).argmin())
    expected = shared_noise_distribution(plain, softmax(draft[root]))
    assert abs(first - expected).max() < 1e-6
    assert abs(first - plain).max() > 0.01
    assert (shared_noise_distribution(plain, plain) == plain).all()
