"""First come, first served; a slot for each; a queue that ends."""

import itertools

import pytest

from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.plan import plan_offline, plan_serving, slots_of
from specjax.engine.request_state import RequestState
from specjax.engine.rows import IDLE_REQUEST, layout
from specjax.engine.scheduler import Full, Scheduler
from specjax.engine.warm import pieces

LEAN = layout([IDLE_REQUEST], 40, 4)


def requests(number: int) -> list[RequestState]:
    return [RequestState(i, IDLE_REQUEST) for i in range(number)]


def test_first_come_first_served_while_slots_are_free():
    scheduler, asked = Scheduler((1, 2)), requests(3)
    scheduler.put(asked)
    assert scheduler.next() == [asked[0]]
    assert scheduler.next() == [asked[0]]  # until it has been read
    assert scheduler.place(asked[0]) == 0
    assert scheduler.next() == [asked[1]]
    assert (scheduler.resize(scheduler.larger()), scheduler.num_slots) == ([0], 2)
    assert scheduler.place(asked[1]) == 1
    assert scheduler.next() == []
    assert (len(scheduler), scheduler.num_running) == (3, 2)
    assert scheduler.remove(asked[0]) == 0
    assert scheduler.next() == [asked[2]]
    assert scheduler.place(asked[2]) == 0


def test_the_lowest_priority_runs_first_then_the_oldest():
    asked = requests(6)
    for one, priority in zip(asked, (0, 5, -1, 0, -1, 5), strict=True):
        one.request = one.request._replace(priority=priority)
    scheduler = Scheduler((1,))
    scheduler.put(asked[:3])
    scheduler.put(asked[3:])
    order = []
    while len(scheduler):
        (first,) = scheduler.next()
        order.append(asked.index(first))
        scheduler.remove(first)
    assert order == [2, 4, 0, 3, 1, 5]


def test_prompts_that_are_read_together_keep_a_slot_each():
    scheduler, asked = Scheduler((1, 2, 4)), requests(6)
    scheduler.put(asked)
    assert scheduler.next(lambda waiting: len(waiting) - 1) == asked[:3]  # of the 4 that have room
    assert (scheduler.num_running, len(scheduler)) == (3, 6)
    assert scheduler.remove(asked[1]) is None
    assert scheduler.next() == [asked[0], asked[2]]


def test_a_request_may_leave_from_anywhere():
    scheduler, asked = Scheduler((4,)), requests(3)
    scheduler.put(asked)
    scheduler.next()
    scheduler.place(asked[0])
    scheduler.next()
    assert scheduler.remove(asked[2]) is None  # waiting
    assert scheduler.remove(asked[1]) is None  # being read
    assert scheduler.remove(asked[0]) == 0
    assert len(scheduler) == 0


def test_rows_close_up_when_the_batch_shrinks():
    scheduler, asked = Scheduler((1, 2, 4)), requests(4)
    scheduler.num_slots = 4
    scheduler.put(asked)
    for one in asked:
        scheduler.next()
        scheduler.place(one)
    scheduler.remove(asked[0])
    scheduler.remove(asked[2])
    assert scheduler.resize(scheduler.smaller()) == [1, 3]
    assert scheduler.decoding == {0: asked[1], 1: asked[3]}


def test_a_full_queue_takes_all_samples_or_none():
    scheduler = Scheduler((1, 2), max_waiting=2)
    scheduler.put(requests(3))
    with pytest.raises(Full, match="3 requests run or wait, and at most 4 may"):
        scheduler.put(requests(2))
    scheduler.put(requests(1))
    assert len(scheduler) == 4


@pytest.mark.parametrize("size", [1, 2, 3, 6, 8, 64])
def test_sizes_double_up_to_the_largest(size):
    sizes = slots_of(size)
    assert (sizes[0], sizes[-1]) == (1, size)
    assert all(a < b <= 2 * a for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize(("max_model_len", "most"), [(120, 20), (2048, 67), (40960, 109)])
def test_a_service_has_few_programs(max_model_len, most):
    """Each takes about 100 of the 65,530 memory maps of a process (64 slots, K = 5)."""
    plan = plan_serving(LEAN, max_model_len, 6, 64, None)
    assert plan.windows is not None
    rounds = len(plan.tiers) * len(plan.sizes) * len(plan.windows)
    read = len(pieces(plan, False)) + len(pieces(plan, True)) + len(plan.groups)
    assert rounds + read <= most


def test_levels_serve_what_they_hold():
    plan = plan_serving(LEAN, 120, 6, 4, None)
    lean, full = plan.tiers
    hot = IDLE_REQUEST._replace(params=SamplingParams(temperature=0.8, seed=1))
    assert plan.tier([IDLE_REQUEST, hot]) is lean
    for options in ({"top_p": 0.9}, {"logprobs": 0}, {"repetition_penalty": 1.1}):
        assert plan.tier([hot, IDLE_REQUEST._replace(params=SamplingParams(**options))]) is full
    assert plan.tier([IDLE_REQUEST._replace(stop_ids=tuple(range(9)))]) is full


def test_a_chunk_must_fit_what_may_be_read_at_once():
    assert plan_serving(LEAN, 120, 6, 4, 100).chunks == (16, 64)
    with pytest.raises(ValueError, match="max_num_batched_tokens=9"):
        plan_serving(LEAN, 120, 6, 4, 9)


@pytest.mark.parametrize("most", [16, 64, 100, 256, 2000])
def test_no_pass_reads_more_than_max_num_batched_tokens(most):
    plan = plan_serving(LEAN, 2048, 6, 8, most)
    assert max(*plan.chunks, *plan.scored_chunks) <= most
    assert all(count * chunk <= most for count, chunk in plan.groups)


def test_known_requests_get_the_smallest_shapes():
    plan = plan_offline([IDLE_REQUEST._replace(limit=100)] * 3, 40, 4, 5, 8)
    assert (plan.capacity, plan.sizes, plan.windows) == (128, (1, 2, 4), None)
    assert (plan.window(50, 105), plan.window(50, 1000)) == (128, 64)
