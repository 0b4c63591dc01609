"""Replays against the truth, where every draft token of a text is known."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax.traces import Event, counterfactual, fixed, off_after, to_trace


def run(hits, end, k):
    """Speculate through a text of ``end`` tokens: token 0 is the prefill's."""
    events, position = [Event("0", 0, 0, 0, 1, 0.0)], 1
    while position < end:
        accepted = int(np.append(hits[position : position + k], False).argmin())
        emitted = min(accepted + 1, end - position)
        events.append(Event("0", len(events), k, accepted, emitted, float(len(events))))
        position += emitted
    return to_trace(events)


@st.composite
def texts(draw):
    """Draw a text's hits, past its end too, with long runs of them."""
    seed, share = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([0.3, 0.7, 0.95, 1.0]))
    end = draw(st.integers(1, 60))
    return np.random.default_rng(seed).random(end + 10) < share, end


@settings(deadline=None, max_examples=200)
@given(texts(), st.integers(1, 7), st.integers(0, 7))
def test_the_truth_lies_between_and_is_found_where_k_plus_one_divides(text, depth, k):
    (hits, end), k = text, min(k, depth)
    found = counterfactual(run(hits, end, depth), fixed(k))
    low, high = found.num_rounds
    real = run(hits, end, k)
    assert low <= real.rounds.sum() <= high
    if (depth + 1) % (k + 1) == 0:
        assert found.exact
    if found.exact:
        for one in (found.wrong, found.right):
            np.testing.assert_array_equal(one.emitted, real.emitted)
            np.testing.assert_array_equal(one.accepted[:-1], real.accepted[:-1])


def test_a_pause_ends_with_one_try():
    hits = np.zeros(40, bool)
    found = counterfactual(run(hits, 20, 3), off_after(2, 3, 3))
    assert found.exact
    drafted = found.wrong.drafted[1:].tolist()
    assert drafted[:10] == [3, 3, 0, 0, 0, 3, 0, 0, 0, 3]
