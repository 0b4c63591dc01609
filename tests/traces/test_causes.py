"""A made cause is the one that is named, with bounds that hold it, and magnitudes have words."""

import numpy as np
import pytest

from specjax.readers.observation import Latency
from specjax.theory import HARDWARE
from specjax.theory.modelled import ModelledServer
from specjax.traces.advice import advise_server
from specjax.traces.causes import MEASURED, MODELLED, UNKNOWN, find_causes
from specjax.traces.gain import find_gain
from tests.theory.test_modelled import DRAFT, TARGET
from tests.traces.test_gain import PLAIN, SPEC, changed

RATES = (0.8, 0.5, 0.2)
SERVER = ModelledServer(HARDWARE["H200"], TARGET, DRAFT, 500.0)


def causes(seen, baseline=None, server=None, method=None):
    found = find_causes(seen, find_gain(seen, baseline), baseline, server, method)
    return {one.name: one for one in found}


def served(running, overhead, share=0.8):
    """A server and its baseline, both at a share of the peak, and an overhead per round."""
    hw = SERVER.slowed(share, share)
    plain, whole = SERVER.rounds(running, (0, 3), hw, hw)
    tokens = 1.0 + sum(RATES)
    tpot = (whole + overhead * plain) / tokens
    seen = changed(
        SPEC,
        running=float(running),
        acceptance_per_position=RATES,
        generation_tokens=None,
        tpot=Latency(float(tpot), count=1000, std=0.1 * float(tpot)),
    )
    base = Latency(float(plain), count=1000, std=0.1 * float(plain))
    return seen, changed(PLAIN, running=float(running), tpot=base)


@pytest.mark.parametrize(("running", "overhead"), [(1, 0.0), (1, 0.8), (64, 0.0), (200, 0.3)])
def test_the_bounds_hold_the_costs_that_were_made(running, overhead):
    seen, baseline = served(running, overhead)
    found = causes(seen, baseline, SERVER)
    hw = SERVER.slowed(0.8, 0.8)
    plain, whole = SERVER.rounds(running, (0, 3), hw, hw)
    _, verified = SERVER._replace(draft=None).rounds(running, (0, 3), hw, hw)
    made = {
        "drafting": (whole - verified) / plain,
        "verifying": verified / plain - 1,
        "overhead": overhead,
    }
    for name, value in made.items():
        cause = found[name]
        assert cause.known == MODELLED
        assert cause.value is not None
        assert cause.value.low - 1e-9 <= value <= cause.value.high + 1e-9, name
    if overhead == 0.8:
        assert "are neither model's" in found["overhead"].says
    if not overhead:
        assert "not told apart from nothing" in found["overhead"].says


def test_without_a_roofline_costs_are_unknown_and_say_what_to_pass():
    found = causes(changed(SPEC, acceptance_per_position=RATES))
    assert found["acceptance"].known == found["batch"].known == MEASURED
    assert found["drafting"].known == found["verifying"].known == UNKNOWN
    assert "--hardware" in found["drafting"].says
    assert "--baseline" in found["overhead"].says
    assert found["queueing"].known == UNKNOWN


def test_words_follow_magnitudes():
    good = causes(changed(SPEC, acceptance_per_position=RATES))["acceptance"].says
    assert "0.80, 0.62, 0.40: later ones are much worse" in good
    bad = changed(SPEC, num_accepted_tokens=150, acceptance_rate=0.05)
    assert "chance level" in causes(bad)["acceptance"].says
    assert "chance level" not in good
    waits = changed(SPEC, queue=Latency(0.6), e2e=Latency(1.0), preemptions=3.0)
    assert "60% of its time: the server is saturated" in causes(waits)["queueing"].says
    assert "3 requests were preempted" in causes(waits)["memory"].says


def test_acceptance_is_held_against_what_the_method_usually_has():
    """2.5 tokens at K = 3, where EAGLE-3 had 2.25 to 2.87; and other methods."""
    seen = changed(SPEC, acceptance_per_position=RATES)
    says = causes(seen, method="eagle3")["acceptance"].says
    assert "2.25 (summarization) to 2.87 (math) tokens per round at K = 3: here 2.50, as us" in says
    assert "speculators issue 563" in says
    one = causes(changed(SPEC, acceptance_per_position=(0.5,)), method="eagle3")["acceptance"].says
    assert "1.67 (summarization) to 1.81 (math) tokens per round at K = 1: here 1.50, less" in one
    many = changed(SPEC, acceptance_per_position=(0.95,) * 9)
    assert (
        "at K = 8: here 8.60, more than usual"
        in causes(many, method="draft_model")["acceptance"].says
    )
    suffix = causes(changed(seen, acceptance_rate=0.3), method="suffix")["acceptance"].says
    assert "24% (ARC) to 50% (AGIEval) of the drafted tokens accepted: here 30%, as" in suffix
    assert "is not known here" in causes(seen, method="ngram")["acceptance"].says
    with pytest.raises(ValueError, match="nothing is published here of method 'magic', only of"):
        causes(seen, method="magic")


def test_advice_is_measured_modelled_or_none():
    seen = changed(SPEC, acceptance_per_position=RATES)
    none = advise_server(seen, find_gain(seen), None)
    assert none.schedule is None
    assert "Measure K and plain decoding" in none.says[-1]
    slow = changed(PLAIN, tpot=Latency(0.005, count=50, std=0.001))
    assert (
        "plain decoding (K = 0) is measured"
        in advise_server(seen, find_gain(seen, slow), None).says[0]
    )
    found = advise_server(seen, find_gain(seen), SERVER)
    assert found.schedule is not None
    assert found.schedule[0][0] == 1
    assert found.schedule[-1][2] < 3
    assert np.diff([k for *_, k in found.schedule]).max(initial=-1) < 0
    assert "nothing is said of K > 3" in found.says[-1]
