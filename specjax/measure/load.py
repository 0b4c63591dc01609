"""Generate load: a closed loop of a given concurrency, or an open loop of Poisson arrivals."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")
Result = TypeVar("Result")


async def closed_loop(
    send: Callable[[Item], Awaitable[Result]], items: Sequence[Item], concurrency: int
) -> list[Result]:
    """Return the results of sending all items, ``concurrency`` at a time, in their order.

    The next item is sent as soon as one is done.
    """
    waiting, results = iter(enumerate(items)), {}

    async def work() -> None:
        for index, item in waiting:  # shared: each takes the next
            results[index] = await send(item)

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return [results[index] for index in range(len(items))]


async def open_loop(
    send: Callable[[Item], Awaitable[Result]], items: Sequence[Item], times: Sequence[float]
) -> list[Result]:
    """Return the results of sending each item at its time, however many are unfinished.

    ``times`` are values of ``time.perf_counter()``.
    """

    async def work(item: Item, when: float) -> Result:
        await asyncio.sleep(max(when - time.perf_counter(), 0.0))
        return await send(item)

    return await asyncio.gather(*(work(*pair) for pair in zip(items, times, strict=True)))


def poisson_arrivals(rate: float, num: int, seed: int) -> list[float]:
    """Return random arrival times [s] of a Poisson process of ``rate`` requests per second."""
    return np.random.default_rng(seed).exponential(1 / rate, num).cumsum().tolist()
