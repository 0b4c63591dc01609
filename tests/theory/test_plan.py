"""The steady state is Little's law; more devices and less load never make TPOT worse."""

import numpy as np
import pytest

from specjax.theory import HARDWARE, tokens_per_step
from specjax.theory.modelled import ModelledServer
from specjax.theory.plan import Load, devices_needed, solve, steady
from specjax.viz.plan import plan_picture
from tests.theory.test_modelled import DRAFT, TARGET

SERVER = ModelledServer(HARDWARE["H200"], TARGET, DRAFT, 1125.0)
LOAD = Load(4.0, 1000.0, 250.0)


def test_the_steady_state_is_littles_law():
    """Batch = rate x output x TPOT, up to the whole row that the batch is rounded up to."""
    for world in SERVER.worlds():
        for k, tokens in ((0, 1.0), (3, 2.5)):
            batch, tpot = solve(SERVER, LOAD, k, tokens, world, SERVER.most_rows())
            if np.isnan(batch):
                continue
            prefill = LOAD.rps * LOAD.prompt * 2 * TARGET.num_params / world[0].flops
            round_s = SERVER.rounds(batch, [k], *world)[0]
            assert tpot == pytest.approx(round_s / tokens / (1 - prefill))
            assert batch - 1 < LOAD.rps * LOAD.output * tpot <= batch * (1 + 1e-9)


def test_a_light_load_gains_what_one_row_does():
    plain, spec = steady(SERVER, Load(1e-6, 1.0, 1.0), 0.7, (0, 3))
    both = SERVER._replace(context=1.5).costs(1, 3)["both"]
    tokens = float(tokens_per_step(0.7, 3))
    assert plain.gain.low == plain.gain.high == 1
    assert spec.gain.low == pytest.approx(tokens / (1 + both.high), rel=1e-3)
    assert spec.gain.high == pytest.approx(tokens / (1 + both.low), rel=1e-3)


def test_more_devices_are_faster_until_the_objective_is_met():
    found = devices_needed(SERVER, LOAD, 0.7, range(6), 0.02)
    assert [one.num_devices for one in found] == [1, 2]
    assert found[1].tpot.high < 0.02
    assert not found[0].tpot.high <= 0.02
    assert found[0].tpot.low > found[1].tpot.low


def test_overload_and_memory_have_no_steady_state():
    (one,) = steady(SERVER, LOAD._replace(rps=1000.0), 0.7, (3,))
    assert np.isnan(one.tpot.low)
    (one,) = steady(SERVER._replace(hardware=HARDWARE["TPU-v5e"]), LOAD, 0.7, (3,))
    assert one.limit == 0
    assert np.isnan(one.tpot.low)
    (one,) = steady(SERVER, LOAD, 0.7, (8,))
    assert np.isnan(one.tpot.high)  # overloaded in some worlds,
    assert one.tpot.low > 0  # not in all


def test_the_picture_has_the_steady_states():
    lines, ax = plan_picture(SERVER, LOAD, 0.7, 0.05, ks=(0, 3))
    assert [line.k for line in lines] == [0, 3]
    middle = LOAD._replace(rps=lines[1].rps[5])
    assert lines[1].high[5] == pytest.approx(steady(SERVER, middle, 0.7, (3,))[0].tpot.high)
    assert "TPOT (ms)" in ax.get_ylabel()


@pytest.mark.parametrize(
    ("load", "said"), [((-1.0, 1.0, 1.0), "rps must be"), ((1.0, 1.0, 0.0), "output must be")]
)
def test_an_impossible_load_is_refused(load, said):
    with pytest.raises(ValueError, match=said):
        steady(SERVER, Load(*load), 0.7, (0,))
