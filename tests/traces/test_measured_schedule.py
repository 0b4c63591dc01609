"""A recommended schedule does not slow a server down, and ends where the measurements end."""

import numpy as np
import pytest

from specjax.traces.measured_schedule import Step, measured_schedule

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
DEPTHS = (0, 1, 2, 3, 5, 8)


def roofline(batch, k, knee, draft, host):
    """Seconds of a round: the greater of reading weights and computing, drafts and host on top."""
    return np.maximum(1.0, batch * (k + 1) / knee) + k * draft + host


def test_in_random_worlds_the_schedule_loses_against_neither_plain_nor_the_k_in_use():
    """Regret: fewer than 1% of 2,000 worlds (roofline, alpha, load) lose more than 2%.

    With powers of two alone it is 1.8%: a bend between two measured batches stays hidden.
    """
    rng = np.random.default_rng(0)
    lost = 0
    for _ in range(2000):
        world = 2 ** rng.uniform(3, 9), rng.uniform(0, 0.3), rng.uniform(0, 0.3)
        alpha, load, used = rng.uniform(0.1, 0.95), rng.integers(1, 257), rng.choice(DEPTHS)
        steps = [Step(b, k, float(roofline(b, k, *world))) for b in BATCHES for k in DEPTHS]
        tokens = [float((1 - alpha ** (k + 1)) / (1 - alpha)) for k in range(max(DEPTHS) + 1)]
        ranges = measured_schedule(steps, tokens.__getitem__)
        assert ranges is not None
        k = next(k for first, last, k in ranges if first <= load <= last)
        speed = {n: tokens[n] / roofline(load, n, *world) for n in DEPTHS}
        lost += speed[k] < 0.98 * max(speed[0], speed[used])
    assert lost < 20


def test_the_schedule_ends_where_the_measurements_end():
    """Verifying is free at every measured batch, and dear beyond: nothing is said of beyond."""
    steps = [Step(b, k, 1.0 + 0.01 * k) for b in (1, 8) for k in (0, 4)]
    assert measured_schedule(steps, lambda k: 1.0 + 0.5 * k) == [[1, 8, 4]]


def test_plain_decoding_wins_where_it_was_measured_faster():
    steps = [Step(1, 0, 1.0), Step(1, 4, 1.1), Step(9, 0, 1.0), Step(9, 4, 9.1)]
    ranges = measured_schedule(steps, lambda k: 1.0 + 0.5 * k)
    assert ranges == [[1, 2, 4], [3, 9, 0]]


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [Step(1, 0, 1.0), Step(1, 4, 1.0)],
        [Step(2, 0, 1.0), Step(2, 4, 1.0), Step(8, 0, 1.0), Step(8, 4, 1.0)],
        [Step(1, 4, 1.0), Step(8, 4, 1.0)],
        [Step(1, 0, 1.0), Step(1, 4, 1.0), Step(8, 0, 1.0), Step(8, 2, 1.0)],
    ],
)
def test_too_little_measured_gives_no_schedule(steps):
    assert measured_schedule(steps, lambda k: 1.0 + k) is None
