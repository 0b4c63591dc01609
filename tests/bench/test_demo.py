"""The numbers of the demo agree with each other, and every method that ships is measured."""

import pytest

from specjax.bench.demo import ARMS, Arm, Run, summarize
from specjax.bundled import HEADS
from specjax.core.metrics import SpecDecodeCounters

PLAIN = Run((tuple(range(100)),), 99, SpecDecodeCounters.zeros(4))
TIMES = [1.0, 2.0, 1.0]  # the machine was busy in the second turn


def test_tokens_per_second_and_speedup_are_one_estimate():
    run = PLAIN._replace(num_rounds=33)
    plain = summarize(Arm("plain", 0.0, None, "plain"), PLAIN, TIMES, PLAIN, TIMES)
    assert (plain.speedup, plain.tokens_per_second, plain.spread) == (1.0, 100.0, None)
    mine = summarize(Arm("ngram", 0.0, {}, "plain"), run, [0.5, 1.25, 0.8], PLAIN, TIMES)
    assert mine.speedup == pytest.approx(1.6)
    assert mine.spread == pytest.approx((1.25, 2.0))
    assert mine.tokens_per_second == pytest.approx(plain.tokens_per_second * mine.speedup)
    assert mine.tokens_per_round == 3.0


def test_every_method_that_ships_has_an_arm():
    assert {arm.name for arm in ARMS} >= {"plain", "ngram", "suffix", "draft_model", *HEADS}
