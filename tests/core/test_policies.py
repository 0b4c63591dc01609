"""Adaptive K: policies are pure, follow what they see, and lose little under a changing load."""

import numpy as np
import pytest

from specjax.core.policies import Seen, by_acceptance, by_throughput, count_positions
from specjax.simulate import Costs, Phase, under_load

# a bundled model on two cores: K = 3 gains at batch 1 and costs at batch 32
COSTS = Costs(t0=0.004, t1=0.0002, t_tok=0.0002, t_draft0=0.0008, t_draft1=0.00005, t_flop=0.00035)
LOAD = (
    Phase(1, 0.8, 10.0), Phase(32, 0.8, 10.0), Phase(4, 0.3, 10.0), Phase(16, 0.7, 10.0),
    Phase(64, 0.5, 10.0), Phase(2, 0.9, 10.0), Phase(64, 0.95, 10.0), Phase(1, 0.2, 10.0),
)  # fmt: skip


def seen(accepted: list[int], depth: int, seconds: float | None = None) -> Seen:
    return Seen(len(accepted), depth, 1, *count_positions(accepted, depth), seconds)


def test_three_percent_of_the_best_fixed_k_are_lost_at_most_over_a_changing_load():
    shares = []
    for seed in range(3):
        found = under_load(by_throughput([0, 1, 3], 64), LOAD, COSTS, noise=0.1, seed=seed)
        shares.append(found.against_best)
        assert found.against_best.min() > 0.9  # in the first phases every K is tried
    assert np.mean(shares) > 0.97
    assert {0, 2} <= set(found.fixed.argmax(axis=1))  # the load does change what is best


def test_following_acceptance_alone_loses_where_verification_is_dear():
    found = under_load(by_acceptance([0, 1, 3]), LOAD, COSTS)
    assert found.against_best.min() < 0.7


@pytest.mark.parametrize("policy", [by_acceptance([0, 2]), by_throughput([0, 2], 4)])
def test_a_policy_is_a_pure_function(policy):
    def run():
        state, chosen = policy.init(), []
        for i in range(60):
            choice, after = policy.choose(state, 1 + i % 4)
            assert policy.choose(state, 1 + i % 4)[0] == choice
            chosen.append(choice)
            k = choice.depth
            state = policy.learn(after, seen([min(i % 3, k)] * 2, k, 0.01 + 0.001 * k))
        return chosen

    assert run() == run()


def test_acceptance_moves_k_up_and_down_as_sglangs_rule_does():
    policy = by_acceptance([1, 3, 5], warmup_batches=0, update_interval=1, ema_alpha=1.0)
    state = policy.init()
    assert policy.choose(state, 1)[0] == (5, 1)
    for accepted, expected in ((0, 1), (1, 3), (3, 5), (2, 3), (0.2, 1)):
        counts = np.array([10] + [0] * 4), np.array([round(10 * accepted)] + [0] * 4)
        state = policy.learn(state, Seen(10, 5, 1, *counts, None))
        assert policy.choose(state, 1)[0] == (expected, 1)


def test_k_zero_is_left_again_by_a_trial():
    policy = by_acceptance([0, 2], warmup_batches=0, update_interval=5, ema_alpha=0.5)
    state, chosen = policy.init(), []
    for _ in range(8):
        (k, rounds), state = policy.choose(state, 1)
        chosen += [k] * rounds
        state = policy.learn(state, Seen(1, k, rounds, *count_positions([0] * rounds, k), None))
    assert len(chosen) == 40
    assert chosen.count(2) == 20
    assert chosen[-10:].count(2) == 5


def test_a_batch_size_that_never_ran_is_measured_with_every_k_first():
    policy, state, chosen = by_throughput([0, 3], 8, probe_budget=0.0), None, {1: [], 8: []}
    state = policy.init()
    for running in (1, 8):
        for _ in range(5):
            (k, rounds), state = policy.choose(state, running)
            chosen[running] += [k] * rounds
            counts = count_positions([k] * running * rounds, k)
            seconds = rounds * 0.01 * (1 + k * (running == 8))
            state = policy.learn(state, Seen(running, k, rounds, *counts, seconds))
    assert chosen[1] == [3] * 4 + [0] * 4 + [3] * 24  # on wins with one request
    assert chosen[8][:8] == [3] * 4 + [0] * 4
    # 4 tokens in 4 times the time: no gain above the hysteresis, so the present K stays
    assert set(chosen[8][8:]) == {3}


def test_batches_of_as_many_slots_share_their_times():
    policy = by_throughput([0, 3], 8, probe_budget=0.0)
    state = policy.init()
    for k, seconds in ((3, 0.040), (0, 0.010)):  # of four rounds
        assert policy.choose(state, 5)[0] == (k, 4)
        state = policy.learn(state, Seen(5, k, 4, *count_positions([0] * 20, k), seconds))
    for running, chosen in ((5, (0, 8)), (8, (0, 8)), (9, (0, 8)), (4, (3, 4))):
        assert policy.choose(state, running)[0] == chosen


def test_candidates_are_numbers_of_tokens():
    with pytest.raises(ValueError, match="candidate_steps must list"):
        by_acceptance([])
    with pytest.raises(ValueError, match="candidate_steps must list"):
        by_throughput([-1, 2], 4)
    with pytest.raises(ValueError, match="hysteresis must be in"):
        by_throughput([2], 4, hysteresis=2.0)
