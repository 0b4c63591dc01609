"""Loops send every item once, keep its place, and hold to their concurrency or their times."""

import asyncio
import time

import numpy as np
import pytest

from specjax.measure.load import closed_loop, open_loop, poisson_arrivals


@pytest.mark.parametrize("concurrency", [1, 3, 20])
def test_a_closed_loop_keeps_its_concurrency_and_the_order(concurrency):
    running, most = 0, 0

    async def send(item):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (item % 3))
        running -= 1
        return -item

    results = asyncio.run(closed_loop(send, range(10), concurrency))
    assert results == [-item for item in range(10)]
    assert most == min(concurrency, 10)


def test_an_open_loop_sends_at_the_given_times():
    sent = {}

    async def send(item):
        sent[item] = time.perf_counter()
        await asyncio.sleep(0.2)
        return item

    start = time.perf_counter() + 0.01
    times = [start + 0.02 * item for item in range(4)]
    assert asyncio.run(open_loop(send, range(4), times)) == [0, 1, 2, 3]
    assert list(sent) == [0, 1, 2, 3]
    assert all(sent[item] > times[item] - 1e-3 for item in range(4))


def test_arrivals_are_a_poisson_process_of_the_seed():
    arrivals = poisson_arrivals(100.0, 10_000, seed=0)
    assert arrivals == poisson_arrivals(100.0, 10_000, seed=0)
    gaps = np.diff([0.0, *arrivals])
    assert gaps.mean() == pytest.approx(0.01, rel=0.05)
    assert gaps.std() == pytest.approx(0.01, rel=0.05)
