"""The speedup of a server over its baseline has an interval, or a reason why it is not known."""

import numpy as np
import pytest

from specjax.readers.observation import Latency, Observation, Part
from specjax.traces.gain import find_gain

SPEC = Observation(
    engine="vLLM",
    source="spec",
    num_drafts=1000,
    num_draft_tokens=3000,
    num_accepted_tokens=1500,
    acceptance_rate=0.5,
    mean_acceptance_length=2.5,
    num_requests=50,
    generation_tokens=2550 + 400,
    running=4.0,
    tpot=Latency(0.010, count=50, std=0.002),
)
PLAIN = Observation(
    engine="vLLM", source="plain", running=4.4, tpot=Latency(0.018, count=50, std=0.001)
)


def changed(one, **fields):
    return Observation(**{**one.__dict__, **fields})


def test_rounds_without_a_draft_count_in_tokens_per_round():
    """50 first tokens, 1,000 rounds with a draft (2.5 tokens each), 400 without: 2,900 / 1,400."""
    found = find_gain(SPEC)
    assert found.tokens_per_round == pytest.approx(2900 / 1400)
    assert found.round_s == pytest.approx(0.010 * 2900 / 1400)
    assert found.speedup is None
    assert "no --baseline" in found.reasons["speedup"]


def test_the_interval_of_the_speedup_covers_its_truth():
    """Draw both means 400 times: the 95% interval of their ratio covers in 90 to 99% of them."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(400):
        a, b = rng.gamma(4.0, 0.010 / 4, 50), rng.gamma(9.0, 0.018 / 9, 50)
        one, other = (Latency(x.mean(), count=50, std=x.std(ddof=1)) for x in (a, b))
        found = find_gain(changed(SPEC, tpot=one), changed(PLAIN, tpot=other)).speedup
        covered += found.low <= 1.8 <= found.high
    assert 360 <= covered <= 396


def test_the_interval_of_acceptance_is_that_of_its_windows():
    rates = (0.4, 0.6, 0.5, 0.45, 0.55, 0.5)
    parts = tuple(Part(100, 300, round(300 * rate)) for rate in rates)
    wide = find_gain(changed(SPEC, parts=parts))
    assert wide.rate.low < 0.45 < 0.55 < wide.rate.high
    assert wide.length.high == pytest.approx(1 + 3 * wide.rate.high)
    alone = find_gain(changed(SPEC, num_requests=None)).rate
    assert np.isnan(alone.low)


@pytest.mark.parametrize(
    ("baseline", "why"),
    [
        (changed(PLAIN, running=16.0), "4 requests ran side by side, 16 in the baseline"),
        (changed(PLAIN, tpot=None), "no TPOT of plain"),
    ],
)
def test_what_cannot_be_compared_has_a_reason(baseline, why):
    found = find_gain(SPEC, baseline)
    assert found.speedup is None
    assert why in found.reasons["speedup"]


def test_a_baseline_that_speculates_is_refused():
    with pytest.raises(ValueError, match="the baseline spec speculates too"):
        find_gain(SPEC, SPEC)
