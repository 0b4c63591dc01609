"""Compile all that a service will run, before the first request comes.

Every program is called once on idle rows, so what is compiled is what will be called.
"""

from collections.abc import Callable, Iterator

import jax
import numpy as np

from specjax.engine import rows
from specjax.engine.corpus import Corpus
from specjax.engine.loop import Loop
from specjax.engine.plan import Level, Plan
from specjax.engine.rows import NOBODY
from specjax.types import Engine, State

Work = Callable[[], object]


def warm(loop: Loop, corpus: Corpus | None = None) -> Iterator[tuple[int, int]]:
    """Run every program once; yields (done, all) after each."""
    work = list(reading(loop))
    for level in loop.plan.levels:
        work += rounds(loop, level)
    for done, one in enumerate(work, start=1):
        jax.block_until_ready(one())
        yield done, len(work)
    if corpus is not None:
        for _ in corpus.shapes():
            yield len(work), len(work)
        loop.params = loop.params._replace(draft=corpus.index)


def reading(loop: Loop) -> Iterator[Work]:
    """List the programs that read prompts: one per piece, window and whether it is scored."""
    plan = loop.plan
    for scored in (False, True):
        for chunk, window in sorted(pieces(plan, scored)):
            engine = loop.reader(window, scored)

            def read(engine=engine, chunk=chunk):
                row = new_row(loop, engine.window)
                return loop.driver.prefill(engine, loop.params, row, 0, chunk)

            yield read
    for count, chunk in plan.groups if loop.driver.ahead else ():
        engine = loop.reader(plan.window(chunk + 1), False)

        def read_together(engine=engine, count=count, chunk=chunk):
            state = new_row(loop, engine.window, count)
            state, *rest = loop.driver.prefill(engine, loop.params, state, 0, chunk)
            return rest, loop.driver.select(state, np.zeros(1, np.int32), 0)

        yield read_together


def pieces(plan: Plan, scored: bool) -> set[tuple[int, int]]:
    """Return every (chunk, window) that a prompt of any length is read in."""
    largest, found = max(plan.scored_chunks if scored else plan.chunks), set()
    for start in range(0, plan.capacity, largest):
        for end in range(start + 1, min(start + 2 * largest, plan.capacity)):
            at = start
            while at < end:
                chunk = plan.next_chunk(at, end - at, scored)
                found.add((chunk, plan.window(at + chunk + 1)))
                at += chunk
    return found


def rounds(loop: Loop, level: Level) -> Iterator[Work]:
    """List the programs of the rounds at one level, from one row to all slots, window by window.

    The state is passed on from one to the next: it is donated.
    """
    plan, driver = loop.plan, loop.driver
    now: list[State] = []  # one, once there is one

    def grow(size: int, window: int) -> list[State]:
        row = new_row(loop, window)._replace(sampling=loop.stack([NOBODY], level))
        if size == 1:
            now[:] = [row]
        else:
            (fewer,) = now
            now[0] = driver.select(fewer, np.zeros(size, np.int32), 0)
            driver.select(now[0], np.zeros(len(fewer.text.reason), np.int32), 0)
            state = driver.leave(driver.admit(now[0], 0, row), 0)
            now[0] = state._replace(sampling=loop.stack([NOBODY] * size, level))
        return [driver.fit(now[0], other) for other in plan.windows or ()]

    def run(engine: Engine):
        now[0], *rest = driver.generate(engine, loop.params, now[0], 1, 1, plan.history)
        return rest

    for window in plan.windows or ():
        for fewer, size in zip((0, *plan.sizes), plan.sizes, strict=False):
            yield lambda size=size, window=window: grow(size, window)
            counts = range(fewer + 1, size + 1)
            for engine in {loop.decoder(running, window, level) for running in counts}:
                yield lambda engine=engine: run(engine)


def new_row(loop: Loop, window: int, count: int = 1) -> State:
    """Return idle rows, as prompts are read into."""
    one = rows.nobody(loop.plan.reading.layout, loop.plan.capacity)
    return loop.begin(rows.beside([one] * count), window)
