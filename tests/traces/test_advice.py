"""K at the measured load: never a change that hurts."""

import dataclasses

import numpy as np
import pytest

from specjax.readers.observation import Latency, Observation
from specjax.theory.intervals import Interval
from specjax.theory.lengths import tokens_per_step
from specjax.traces.advice import advise_server, best_at_this_load
from specjax.traces.gain import find_gain

WORLDS = 2000


def test_in_random_worlds_k_at_the_measured_load_seldom_loses_and_often_gains():
    draw, lost, gained, changed = np.random.default_rng(27), [], [], 0
    for _ in range(WORLDS):
        k = int(draw.integers(1, 9))
        tokens = tokens_per_step(draw.uniform(0.1, 0.95), np.arange(k + 1))
        overhead = draw.uniform(0.0, 0.3)  # plain steps, of any round that drafts
        draft, rows = draw.uniform(0.0, 0.4), 10 ** draw.uniform(-2, 0.3)
        nodes = np.arange(k + 1)
        verify = np.maximum(1.0, rows * (nodes + 1)) / max(1.0, rows)  # a roofline
        cost = verify + draft * nodes + overhead * (nodes > 0)
        speed = tokens / cost
        error = 0.02
        seen = speed[k] * np.exp(error * draw.standard_normal())
        bounds = (seen * np.exp(-1.96 * error), seen * np.exp(1.96 * error))
        best, more = best_at_this_load(tokens, {k: Interval(seen, *bounds)}, k)
        changed += best != k
        assert more.low <= more.estimate <= more.high
        lost.append(speed[best] < 0.98 * speed[k])
        gained.append(speed[best] > 1.02 * speed[k])
    assert np.mean(lost) < 0.01
    assert np.mean(gained) > 0.9 * changed / WORLDS
    assert changed > WORLDS / 3


def test_an_interval_that_is_not_known_is_the_measured_speedup():
    tokens = tokens_per_step(0.3, np.arange(9))
    best, more = best_at_this_load(tokens, {8: Interval(0.4, np.nan, np.nan)}, 8)
    assert (best, more.estimate) == (0, 2.5)
    assert np.isnan(more.low)


def test_with_more_measured_k_it_seldom_loses_and_finds_the_best():
    """K in use and two others, each measured within 2%: within 3% of the best of all."""
    draw, lost, best_found = np.random.default_rng(28), [], []
    for _ in range(WORLDS):
        used, *others = draw.permutation(np.arange(1, 9))[:3].tolist()
        nodes = np.arange(max(used, *others) + 1)
        tokens = tokens_per_step(draw.uniform(0.1, 0.95), nodes)
        draft, rows = draw.uniform(0.0, 0.4), 10 ** draw.uniform(-2, 0.3)
        verify = np.maximum(1.0, rows * (nodes + 1)) / max(1.0, rows)
        speed = tokens / (verify + draft * nodes + draw.uniform(0.0, 0.3) * (nodes > 0))
        seen = {k: speed[k] * np.exp(0.01 * draw.standard_normal()) for k in (used, *others)}
        speedups = {k: Interval(one, 0.98 * one, 1.02 * one) for k, one in seen.items()}
        best, _ = best_at_this_load(tokens, speedups, used)
        lost.append(speed[best] < 0.98 * speed[used])
        measured = [0, *seen]
        best_found.append(speed[best] > 0.97 * speed[measured].max())
    assert np.mean(lost) < 0.01
    assert np.mean(best_found) > 0.98


def observed(k, tpot, source="a"):
    shares = tuple(0.7**i for i in range(1, k + 1))
    return Observation(
        engine="vLLM",
        source=source,
        acceptance_per_position=shares or None,
        mean_acceptance_length=1 + sum(shares),
        num_drafts=100 if k else None,
        num_draft_tokens=100 * k or None,
        tpot=Latency(tpot, count=50, std=0.05 * tpot),
    )


def test_the_fastest_measured_k_is_recommended_and_others_are_named():
    plain, used = observed(0, 0.010), observed(8, 0.009)
    others = [(one, find_gain(one, plain)) for one in (observed(3, 0.006), observed(5, 0.007))]
    found = advise_server(used, find_gain(used, plain), None, others)
    assert found.num_speculative_tokens == 3
    assert "At this load: K = 3, measured 1.50x (1.4" in found.says[0]
    alone = advise_server(others[0][0], others[0][1], None, [(used, find_gain(used, plain))])
    assert alone.num_speculative_tokens in (3, 4)


def test_a_k_that_was_not_measured_must_beat_those_that_were():
    """K = 3 and 5 are alike, so 4 is modelled to be best, by 0.02%; K = 8 is in use and slow."""
    tokens = tokens_per_step(0.3, np.arange(9))
    measured = {3: 1.2, 5: 1.2, 8: 1.0}
    best, more = best_at_this_load(tokens, {k: Interval(*[s] * 3) for k, s in measured.items()}, 8)
    assert best in (3, 5)
    assert more.estimate == pytest.approx(1.2)


def test_another_method_is_named_where_it_is_measured_to_be_worth_a_change():
    plain, used = observed(0, 0.010), observed(3, 0.006)
    gain = find_gain(used, plain)

    def with_other(tpot, others=()):
        other = observed(5, tpot, "b")
        return advise_server(used, gain, None, others, {"ngram": (other, find_gain(other, plain))})

    found = with_other(0.004)
    assert found.method == "ngram"
    assert "At this load ngram is measured 1.50x (1.4" in found.says[1]
    assert with_other(0.0059).method is None  # 1.7%
    faster = observed(2, 0.0035)
    assert with_other(0.004, [(faster, find_gain(faster, plain))]).method is None
    with pytest.raises(ValueError, match="its speedup is unknown, no TPOT of"):
        advise_server(
            used,
            gain,
            None,
            (),
            {"a": (faster, find_gain(dataclasses.replace(faster, tpot=None), plain))},
        )


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([observed(3, 0.006), observed(3, 0.006)], "K = 3, and so has another"),
        ([observed(0, 0.006)], "its acceptance by position is unknown"),
    ],
)
def test_what_is_no_other_k_is_refused(others, said):
    plain, used = observed(0, 0.010), observed(8, 0.009)
    pairs = [(one, find_gain(one, plain)) for one in others]
    with pytest.raises(ValueError, match=said):
        advise_server(used, find_gain(used, plain), None, pairs)
