"""A modelled schedule does not slow a server down, whatever shares of its peak it reaches."""

import numpy as np
import pytest

from specjax.theory import HARDWARE, ModelCost, modelled, tokens_per_step
from specjax.theory.modelled import ModelledServer, advise, parse_hardware

TARGET = ModelCost("target", 32e9, 2.0, 262144.0, 2.1e6)
DRAFT = ModelCost("draft", 0.6e9, 2.0, 114688.0)


def chosen(schedule, batch):
    return next(k for first, last, k in schedule if first <= batch <= last)


def test_in_random_worlds_the_schedule_loses_against_no_change_in_fewer_than_1_percent():
    """2,000 worlds whose shares lie up to a tenth outside the bounds; acceptance of 300 drafts."""
    rng, lost, changed = np.random.default_rng(0), 0, 0
    for _ in range(2000):
        size = 10 ** rng.uniform(9, 11)
        server = ModelledServer(
            HARDWARE["H200"],
            ModelCost("t", size, 2.0, 1e5, 1e6),
            ModelCost("d", size * 10 ** rng.uniform(-2.5, -0.7), 2.0, 2e4),
            rng.uniform(100, 8000),
        )
        used, load = int(rng.integers(1, 9)), int(rng.integers(1, 129))
        alpha = rng.uniform(0.05, 0.95)
        accepted = np.minimum(rng.geometric(1 - alpha, 300) - 1, used)

        def seen(k, accepted=accepted):
            return 1.0 + float(np.minimum(accepted, k).mean())

        k = chosen(advise(server, seen, used, most_rows=load).schedule, load)
        own = server.slowed(rng.uniform(0.45, 1.1), rng.uniform(0.36, 0.99))
        drafts = server.slowed(rng.uniform(0.135, 1.1), rng.uniform(0.36, 0.99))
        seconds = server.rounds(load, np.arange(used + 1), own, drafts)
        speed = np.array([tokens_per_step(alpha, n) for n in range(used + 1)]) / seconds
        lost += speed[k] < 0.98 * speed[used]
        changed += k != used
    assert lost < 20
    assert changed > 500  # it does change K


def test_where_compute_binds_k_falls_and_ends_at_0():
    server = ModelledServer(HARDWARE["H200"], TARGET, DRAFT, 200.0)
    found = advise(server, lambda k: float(tokens_per_step(0.7, k)), 3)
    assert [k for *_, k in found.schedule] == [3, 2, 1, 0]
    assert found.schedule[0][0] == 1
    assert all(one.low >= 1 for one in found.gains)
    bound = server.bound_by_compute(3)
    assert 40 < bound < 70
    assert server.costs(bound / 4, 3)["verify"].high == pytest.approx(0, abs=0.01)
    assert server.costs(8 * bound, 3)["verify"].low > 1


def test_what_does_not_fit_into_memory_is_not_recommended():
    one = ModelledServer(HARDWARE["H200"], TARGET, DRAFT, 32768.0)
    assert one.most_rows() == int((141e9 - 2 * 32.6e9) / (32768 * (262144 + 114688)))
    assert one._replace(num_devices=2).most_rows() > 2 * one.most_rows()
    with pytest.raises(ValueError, match="do not fit into 1 x NVIDIA H100 SXM"):
        advise(one._replace(hardware=HARDWARE["H100"], context=2e5), float, 3)


def test_hardware_has_names_and_numbers():
    assert parse_hardware("2xH200") == (HARDWARE["H200"], 2)
    assert parse_hardware("h100") == (HARDWARE["H100"], 1)
    assert parse_hardware("4 x TPU-v6e") == (HARDWARE["TPU-v6e"], 4)
    with pytest.raises(ValueError, match="unknown hardware 'abacus'; valid: N x H200, H100"):
        parse_hardware("abacus")
    assert all(one.memory < float("inf") and one.assumption for one in HARDWARE.values())
    assert modelled.ASSUMED.count("%") == 6
