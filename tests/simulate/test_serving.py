"""The serving simulator: laws that hold whatever the numbers are, and limits with closed forms."""

from functools import partial

import jax
import numpy as np
import pytest

from specjax import theory
from specjax.simulate import (
    Costs,
    Policy,
    by_schedule,
    closed_loop,
    fixed_k,
    latencies,
    latency_quantiles,
    measure,
    off_above,
    open_loop,
    serving,
    slo_goodput,
)

SLOTS, DEPTH, SEEDS = 8, 3, 60  # few shapes, few compilations
DEAR = Costs(0.05, 4e-4, t_tok=3e-3, t_draft0=0.002, t_draft1=1e-4, h=0.004, t_prefill=1e-4)
FREE = Costs(0.05, 4e-4)
LOOP = partial(closed_loop, num_requests=24, mean_input=100, mean_output=60, alpha=0.6)
MIXED = LOOP(SLOTS, output_cv=0.7, alpha_concentration=3.0)


def run(workload=MIXED, costs=DEAR, policy=None, **options):
    """Serve and measure."""
    policy = fixed_k(DEPTH, SLOTS) if policy is None else policy
    served = serving(workload, costs, policy, SLOTS, **options)
    return served, measure(served, workload)


def test_k_0_is_the_baseline_exactly():
    plain = DEAR._replace(t_tok=0.0, t_draft0=0.0, t_draft1=0.0, h=0.0)
    off, _ = run(policy=off_above(0, DEPTH, SLOTS))
    base, _ = run(costs=plain, policy=off_above(0, DEPTH, SLOTS))
    for name, ours, theirs in zip(off._fields, off, base, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    assert off.num_drafted == off.num_accepted == 0
    assert off.num_rounds == MIXED.outputs.sum() - 24  # first tokens come with the prompts


def test_alone_and_without_overhead_the_steps_are_those_of_the_renewal():
    n, alpha = 60, 0.6
    served, numbers = run(LOOP(1), Costs(1.0), num_seeds=SEEDS)
    steps = served.num_steps / 24
    error = steps.std(ddof=1) / np.sqrt(len(steps))
    exact = 1 + theory.steps_to_emit(n - 1, alpha, DEPTH)
    assert abs(steps.mean() - exact) < 4.5 * error
    np.testing.assert_array_equal(served.end, served.num_steps)
    tokens = numbers.tokens_per_step
    error = tokens.std(ddof=1) / np.sqrt(len(tokens))
    assert abs(tokens.mean() - theory.tokens_per_step(alpha, DEPTH)) < 4.5 * error


@pytest.mark.parametrize("loop", ["closed", "open"])
def test_littles_law_holds_on_every_run(loop):
    workload = MIXED
    if loop == "open":
        workload = open_loop(1.0, 24, 100, 60, 0.6, num_slots=SLOTS, output_cv=1.0)
    served, numbers = run(workload)
    assert numbers.little == pytest.approx(1, abs=1e-9)
    assert 0 < numbers.mean_concurrency <= SLOTS
    assert (served.issued <= served.admitted).all()
    assert (served.admitted < served.first).all()
    assert (served.first <= served.last).all()


def test_every_token_is_served_once_and_the_overshoot_is_not():
    served, numbers = run()
    assert served.num_emitted == MIXED.outputs.sum()
    truncated = 24 + served.num_rounds + served.num_accepted - served.num_emitted
    assert 0 < truncated <= 24 * DEPTH
    assert served.accepted_per_pos.sum() == served.num_accepted
    assert numbers.tokens_per_step == pytest.approx(
        1 + numbers.mean_drafted * numbers.acceptance_rate
    )


def test_adaptive_lengths_give_the_theorys_tokens():
    pmf = [0.4, 0.1, 0.2, 0.3]
    served, numbers = run(LOOP(SLOTS), policy=fixed_k(DEPTH, SLOTS, pmf), num_seeds=SEEDS)
    for found, exact in (
        (numbers.tokens_per_step, theory.tokens_adaptive(pmf, 0.6)),
        (numbers.mean_drafted, np.dot(pmf, np.arange(4))),
    ):
        assert abs(found.mean() - exact) < 4.5 * found.std(ddof=1) / np.sqrt(SEEDS)
    assert numbers.acceptance_rate_per_pos.shape == (SEEDS, 3)
    assert (served.num_drafts < served.num_rounds).all()


def gain(costs, clients):
    """Return plain TPOT / speculative TPOT."""
    workload = LOOP(clients)
    plain = run(workload, costs, off_above(0, DEPTH, SLOTS))[1]
    spec = run(workload, costs, num_seeds=SEEDS)[1]
    return plain.tpot_request_mean_s / spec.tpot_request_mean_s.mean()


def test_the_gain_falls_with_concurrency_if_and_only_if_drafted_tokens_cost():
    free = [gain(FREE, clients) for clients in (1, 4, 8)]
    assert max(free) - min(free) < 0.03
    paid = [gain(FREE._replace(t_tok=2e-3), clients) for clients in (1, 4, 8)]
    assert paid[0] > paid[1] + 0.1 > paid[2] + 0.2


@pytest.mark.parametrize("output_cv", [0.0, 1.0])
def test_a_step_proportional_to_its_batch_shares_the_processor(output_cv):
    """M/G/1-PS: the mean latency is S / (1 - rho), whatever the law of the lengths."""
    tokens, tau, rps = 40, 0.01, 1.5  # S = 0.4 s, rho = 0.6
    latencies = []
    for seed in range(40):
        workload = open_loop(rps, 400, 0, tokens, 0.0, num_slots=48, output_cv=output_cv, seed=seed)
        policy = off_above(0, 1, 48)
        served = serving(workload, Costs(0.0, tau), policy, 48)
        latencies.append((served.last - served.issued)[80:320].mean())
    exact = theory.mg1_ps(rps, tokens * tau)
    error = np.std(latencies, ddof=1) / np.sqrt(40)
    assert abs(np.mean(latencies) - exact) < 4.5 * error + 0.03 * exact
    assert error < 0.06 * exact


def test_prompts_disturb_those_who_decode():
    calm = run(costs=DEAR._replace(t_prefill=0.0))[1]
    busy = run(costs=DEAR._replace(t_prefill=1e-3))[1]
    assert busy.tpot_request_mean_s > calm.tpot_request_mean_s + 1e-3
    assert busy.ttft_mean_s > calm.ttft_mean_s + 0.09  # its own prompt of 100 tokens


def test_compute_binds_beyond_the_roofs_edge():
    roof = Costs(0.05, t_flop=0.01)
    slow = run(LOOP(SLOTS), roof, off_above(0, DEPTH, SLOTS))[1]
    assert slow.tpot_request_mean_s == pytest.approx(0.08)  # 8 tokens x 10 ms > 50 ms
    fast = run(LOOP(4), roof, off_above(0, DEPTH, SLOTS))[1]
    assert fast.tpot_request_mean_s == pytest.approx(0.05)


def test_the_cache_limits_who_runs_and_still_everybody_is_served():
    room, numbers = run(LOOP(SLOTS), kv_budget=2.5 * 160)
    assert numbers.mean_concurrency <= 2
    assert room.num_emitted == 24 * 60
    tight = run(LOOP(SLOTS), kv_budget=10.0)[1]
    assert tight.mean_concurrency == pytest.approx(1)


def test_an_open_loop_waits_in_line_when_it_is_overloaded():
    calm, crowded = (
        run(open_loop(rps, 60, 100, 60, 0.6, num_slots=SLOTS))[1] for rps in (0.3, 30.0)
    )
    assert crowded.ttft_mean_s > 10 * calm.ttft_mean_s
    assert crowded.e2el_mean_s > crowded.ttft_mean_s
    assert crowded.tps > calm.tps
    assert calm.mean_concurrency < 2


def test_on_and_off_share_their_requests_and_noise():
    once, again = run()[0], run()[0]
    jax.tree.map(np.testing.assert_array_equal, once, again)
    other = run(seed=1)[0]
    assert other.num_accepted != once.num_accepted
    dear = run(costs=DEAR._replace(t_tok=1e-2))[0]
    assert dear.num_accepted == once.num_accepted  # costs move times, never tokens
    assert dear.end > once.end


def test_parameters_and_seeds_are_vmapped_in_one_call():
    costs = DEAR._replace(t_tok=np.array([0.0, 3e-3]))
    policies = Policy(np.stack([np.zeros(9, int), np.full(9, 3)]), np.eye(4)[-1])
    both = serving(MIXED, costs, policies, SLOTS)
    for i, (t_tok, k) in enumerate(((0.0, 0), (3e-3, 3))):
        policy = Policy(np.full(9, k), np.eye(4)[-1])
        alone = serving(MIXED, DEAR._replace(t_tok=t_tok), policy, SLOTS)
        assert both.end[i] == pytest.approx(alone.end, rel=1e-12)
        assert both.num_accepted[i] == alone.num_accepted
    many = serving(MIXED, costs, policies, SLOTS, num_seeds=5)
    assert many.last.shape == (5, 2, 24)
    assert len(np.unique(many.num_accepted[:, 1])) > 1


def test_a_policy_stops_where_it_says():
    off = off_above(4, DEPTH, SLOTS)
    assert off.schedule.tolist() == [3] * 5 + [0] * 4
    few, many = run(LOOP(4), policy=off)[0], run(LOOP(SLOTS), policy=off)[0]
    assert few.num_drafted == DEPTH * few.num_rounds
    assert many.num_drafted == 0


def test_goodputs_schedule_is_at_least_as_good_as_any_fixed_k():
    cost = {"t0": 0.02, "t1": 4e-3, "td": 1e-3}
    ranges = theory.num_speculative_tokens_per_batch_size(
        0.8, **cost, k_max=DEPTH, max_batch=SLOTS, hysteresis=0.0
    )
    step = Costs(cost["t0"], cost["t1"], t_tok=cost["t1"], t_draft0=cost["td"])
    policy = by_schedule(ranges, SLOTS)
    assert policy.schedule[1] == DEPTH > policy.schedule[SLOTS]
    for clients in (1, 3, 8):
        workload = LOOP(clients, mean_input=0, mean_output=150, alpha=0.8)
        best = run(workload, step, policy, num_seeds=SEEDS)[1].tps.mean()
        for k in range(DEPTH + 1):
            fixed = policy._replace(schedule=np.full(SLOTS + 1, k))
            assert best > 0.985 * run(workload, step, fixed, num_seeds=SEEDS)[1].tps.mean()


def test_tpot_by_request_and_by_token_differ_when_requests_do():
    numbers = run()[1]
    assert numbers.tpot_request_mean_s != pytest.approx(numbers.tpot_token_weighted_s, rel=1e-3)
    alike = run(LOOP(1), Costs(0.05), off_above(0, DEPTH, SLOTS))[1]
    assert alike.tpot_request_mean_s == pytest.approx(0.05)
    assert alike.tpot_token_weighted_s == pytest.approx(0.05)
    assert alike.tps == pytest.approx(20)
    assert alike.tps_steady == pytest.approx(20)
    assert np.isnan(alike.acceptance_rate)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: run(costs=Costs(-1.0)), "t0 must be"),
        (lambda: run(LOOP(9)), "num_slots - clients"),
        (lambda: run(policy=fixed_k(3, 4)), "reach 8 running"),
        (lambda: fixed_k(3, 8, [0.5, 0.5]), "len_pmf must hold"),
        (lambda: LOOP(0), "clients must be"),
        (lambda: LOOP(1, alpha=1.5), "alpha must be"),
        (lambda: open_loop(0.0, 3, 1, 1, 0.5, num_slots=2), "rps must be"),
    ],
)
def test_impossible_servers_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_quantiles_and_goodput_are_those_of_the_requests_themselves():
    served, numbers = run(num_seeds=3)
    each = latencies(served, MIXED)
    np.testing.assert_array_equal(each.e2el, served.last - served.issued)
    found = latency_quantiles(served, MIXED, (0.0, 0.5, 1.0))
    np.testing.assert_array_equal(found.ttft[2], (served.first - served.issued).max(axis=-1))
    assert (np.diff(found.tpot, axis=0) >= 0).all()
    assert each.ttft.mean(axis=-1) == pytest.approx(numbers.ttft_mean_s)
    slo = {"ttft": float(np.median(each.ttft)), "tpot": float(np.median(each.tpot))}
    good = [
        sum(f <= slo["ttft"] and t <= slo["tpot"] for f, t in zip(*rows, strict=True))
        for rows in zip(each.ttft, each.tpot, strict=True)
    ]
    assert 0 < sum(good) < each.ttft.size
    np.testing.assert_allclose(slo_goodput(served, MIXED, slo), np.array(good) / served.end)
    np.testing.assert_allclose(slo_goodput(served, MIXED, {}), 24 / served.end)


def test_with_a_constant_step_goodput_falls_at_the_quantile():
    served, _ = run(LOOP(SLOTS), FREE, policy=off_above(0, DEPTH, SLOTS))
    tpot = float(latency_quantiles(served, LOOP(SLOTS), 0.5).tpot)
    assert tpot == pytest.approx(0.05 + 4e-4 * SLOTS, rel=0.02)
    assert slo_goodput(served, LOOP(SLOTS), {"tpot": 0.9 * tpot}) == 0
    assert slo_goodput(served, LOOP(SLOTS), {"tpot": 1.1 * tpot}) > 0


def test_an_objective_that_nothing_measures_is_refused():
    served, _ = run()
    with pytest.raises(ValueError, match=r"itl.*valid: ttft, tpot, e2el"):
        slo_goodput(served, MIXED, {"itl": 0.1})
    with pytest.raises(ValueError, match="ttft must be at least 0"):
        slo_goodput(served, MIXED, {"ttft": -1.0})
    with pytest.raises(ValueError, match="quantiles"):
        latency_quantiles(served, MIXED, 1.5)
