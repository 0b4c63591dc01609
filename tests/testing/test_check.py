"""check_drafter: a good drafter passes, and each law is broken by a drafter that it names."""

import pytest

from specjax.testing import check_drafter
from specjax.testing.laws import LAWS
from specjax.testing.subject import Subject
from tests.testing.broken import BROKEN, GOOD, counter, good, large, of, takes_anything


def test_a_good_drafter_passes_and_is_reported():
    report = check_drafter(good)
    assert report.laws == tuple(LAWS)
    assert report.tokens_per_round > 1.1
    assert 0 < report.acceptance_rate <= 1
    assert report.seconds_per_draft > 0
    assert report.num_traces > 0


def test_every_law_has_a_drafter_that_breaks_it():
    assert BROKEN.keys() == LAWS.keys()


@pytest.mark.parametrize("law", LAWS)
def test_a_law_is_broken_by_a_drafter_that_breaks_it(law):
    with pytest.raises(AssertionError):
        LAWS[law](Subject(BROKEN[law], 4, {}))


def test_a_drafter_can_keep_the_text_and_not_the_bits():
    """Why the texts are not enough."""
    LAWS["lossless"](Subject(BROKEN["bitwise"], 4, {}))


def test_the_error_begins_with_the_law():
    with pytest.raises(AssertionError, match=r"^bad configs: the factory takes no_such_option="):
        check_drafter(takes_anything)
    with pytest.raises(AssertionError, match=r"^well formed: node 0 must be valid and carry"):
        check_drafter(BROKEN["well formed"])


def floats(params, state, text, sampling, keys, window):
    draft, state = GOOD.propose(params, state, text, sampling, keys, window)
    return draft._replace(tokens=draft.tokens.astype(float)), state


def narrower(params, state, text, sampling, keys, window):
    draft, _ = GOOD.propose(params, (), text, sampling, keys, window)
    return draft, state[:, :1]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"propose": floats}, r"Draft\.tokens is float32\[4, 5\], expected int32\[4, 5\]"),
        (
            {"propose": narrower, "init": large},
            r"propose turns the state float32\[4, .*\[4, 1, 64\]",
        ),
        ({"init": counter, "observe": lambda *args: args[1] * 1.0}, "turns the state int32"),
    ],
)
def test_what_has_another_form_is_named_before_jax_speaks(parts, message):
    with pytest.raises(AssertionError, match=f"^well formed: .*{message}"):
        check_drafter(of(GOOD._replace(**parts)))


def test_the_tiny_target_has_the_layers_that_a_drafter_reads():
    subject = Subject(of(GOOD._replace(taps=(2, 8))), 4, {})
    assert subject.config.num_layers == 8
    LAWS["lossless"](subject)


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (None, "got NoneType"),
        ((good, good), "must return"),
        (BROKEN["lossless"](None, num_speculative_tokens=4)._replace(depth=5), "depth must be 0"),
        (BROKEN["lossless"](None, num_speculative_tokens=4)._replace(nodes=4), "at least depth"),
    ],
)
def test_a_factory_that_returns_something_else_is_refused(built, message):
    with pytest.raises(ValueError, match=message):
        check_drafter(lambda target, *, num_speculative_tokens: built)
