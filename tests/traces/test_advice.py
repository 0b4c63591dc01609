"""K at the measured load: never a change that hurts."""

import numpy as np

from specjax.theory.intervals import Interval
from specjax.theory.lengths import tokens_per_step
from specjax.traces.advice import best_at_this_load

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
        best, more = best_at_this_load(tokens, Interval(seen, *bounds))
        changed += best != k
        assert more.low <= more.estimate <= more.high
        lost.append(speed[best] < 0.98 * speed[k])
        gained.append(speed[best] > 1.02 * speed[k])
    assert np.mean(lost) < 0.01
    assert np.mean(gained) > 0.9 * changed / WORLDS
    assert changed > WORLDS / 3


def test_an_interval_that_is_not_known_is_the_measured_speedup():
    tokens = tokens_per_step(0.3, np.arange(9))
    best, more = best_at_this_load(tokens, Interval(0.4, np.nan, np.nan))
    assert best == 0
    assert more.low == more.high == 2.5
