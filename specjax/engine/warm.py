"""Compile every program of a plan.

Each program is called once, on idle rows, so that what is compiled is what will be called.
"""

import itertools
from collections.abc import Callable, Iterator

import jax
import numpy as np

from specjax.core.cache import all_slots
from specjax.core.types import Engine, State
from specjax.engine import rows
from specjax.engine.plan import Plan, ProgramTier
from specjax.engine.programs import Programs
from specjax.engine.rows import IDLE_REQUEST

Work = Callable[[], object]


def warm(programs: Programs, *, keeps_prefixes: bool = False) -> Iterator[tuple[int, int]]:
    """Run every program once; yields (done, total) after each.

    ``keeps_prefixes``: the first positions of a prompt may be known.
    """
    work = list(prefill_calls(programs, keeps_prefixes))
    for tier in programs.plan.tiers:
        work += decode_calls(programs, tier)
    for done, one in enumerate(work, start=1):
        jax.block_until_ready(one())
        yield done, len(work)


def prefill_calls(programs: Programs, keeps_prefixes: bool) -> Iterator[Work]:
    """Yield a call of each prefill program: one per chunk, window, and with prompt logprobs."""
    plan = programs.plan
    for scored in (True,) if plan.scores_all else (False, True):
        for chunk, window in sorted(pieces(plan, scored)):
            engine = programs.prefill_engine(window, scored)

            def read(engine=engine, chunk=chunk):
                row = new_row(programs, engine.window)
                return programs.driver.prefill(engine, programs.params, row, 0, chunk)

            yield read
    if keeps_prefixes and programs.driver.resume is not None:
        for window, before in itertools.product(plan.windows or (), repeat=2):
            yield lambda window=window, before=before: resumed(programs, window, before)
    for count, chunk in plan.groups if programs.driver.asynchronous else ():
        engine = programs.prefill_engine(plan.window(chunk + 1), False)

        def read_together(engine=engine, count=count, chunk=chunk):
            state = new_row(programs, engine.window, count)
            state, *rest = programs.driver.prefill(engine, programs.params, state, 0, chunk)
            return rest, programs.driver.select(state, np.zeros(1, np.int32), 0)

        yield read_together


def pieces(plan: Plan, scored: bool) -> set[tuple[int, int]]:
    """Return every (chunk size, window) that prefilling prompts of any length calls for.

    Those that begin after known positions call for no others. ``scored``: of prompts whose log
    probabilities are wanted.
    """
    largest, found = max(plan.scored_chunks if scored else plan.chunks), set()
    for start in range(0, plan.capacity, largest):
        for end in range(start + 1, min(start + 2 * largest, plan.capacity)):
            at = start
            while at < end:
                chunk = plan.next_chunk(end - at, scored)
                found.add((chunk, plan.window(at + chunk + 1)))
                at += chunk
    return found


def resumed(programs: Programs, window: int, before: int) -> State:
    """Return an idle row of one window that goes on after one of another."""
    assert programs.driver.resume is not None
    saved = all_slots(new_row(programs, before))
    return programs.driver.resume(new_row(programs, window), saved, 0)


def decode_calls(programs: Programs, tier: ProgramTier) -> Iterator[Work]:
    """Yield a call of each decode program of a tier, from one row to all slots, by window.

    Each call passes its state to the next, since a program's input is donated.
    """
    plan, driver = programs.plan, programs.driver
    now: list[State] = []  # the present state, once there is one

    def grow(size: int, window: int) -> list[State]:
        sampling = programs.stack_sampling([IDLE_REQUEST], tier)
        row = new_row(programs, window)._replace(sampling=sampling)
        if size == 1:
            now[:] = [row]
        else:
            if size == plan.sizes[0]:
                state = programs.idle_state(size, tier, window)
            else:
                state = driver.select(now[0], np.zeros(size, np.int32), 0)
                driver.select(state, np.zeros(len(now[0].text.reason), np.int32), 0)
            state = driver.release_slot(driver.insert_row(state, 0, row), 0)
            sampling = programs.stack_sampling([IDLE_REQUEST] * size, tier)
            now[:] = [state._replace(sampling=sampling)]
        return [driver.fit(now[0], other) for other in plan.windows or ()]

    def run(engine: Engine):
        now[0], *rest = driver.generate(engine, programs.params, now[0], 1, 1, plan.history)
        return rest

    for window in plan.windows or ():
        for fewer, size in zip((0, *plan.sizes), plan.sizes, strict=False):
            yield lambda size=size, window=window: grow(size, window)
            counts = range(fewer + 1, size + 1)
            for engine in programs.decode_engines(counts, window, tier):
                yield lambda engine=engine: run(engine)


def new_row(programs: Programs, window: int, count: int = 1) -> State:
    """Return the state of idle rows, as at the start of a prefill."""
    one = rows.idle_row(programs.plan.prefill_tier.layout, programs.plan.capacity)
    return programs.new_state(rows.concatenate([one] * count), window)
