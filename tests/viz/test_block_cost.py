"""The price of a block: flat up to the knee, then as many passes as it has tokens."""

import numpy as np
import pytest

from specjax import theory
from specjax.viz.block_cost import block_cost


@pytest.mark.parametrize("ctx", [0, 4096])
def test_a_block_is_free_up_to_its_knee_and_never_dearer_than_plain_passes(tmp_path, ctx):
    lines, axes = block_cost(batches=(1, 64), ctx=ctx)
    assert [(line.hardware, line.batch) for line in lines] == [
        (hw.name, batch) for hw in (theory.H200, theory.ASCEND_910B) for batch in (1, 64)
    ]
    for line in lines:
        hw = theory.H200 if line.hardware == theory.H200.name else theory.ASCEND_910B
        np.testing.assert_allclose(line.cost[line.tokens <= line.knee], 1)
        past = line.tokens > line.knee
        np.testing.assert_allclose(line.cost[past], line.tokens[past] / line.knee)
        batch = theory.critical_batch(line.knee, ctx, theory.QWEN3_32B, hw)
        assert batch == pytest.approx(line.batch)
        held = 65.6e9 + line.batch * ctx * 2**18
        assert hw.memory * (line.num_devices - 1) < held <= hw.memory * line.num_devices
    assert len(axes) == 2
    figure = axes[0].get_figure(root=True)
    assert "assumed" in figure.get_suptitle()
    figure.savefig(tmp_path / "cost.png", dpi=60)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"hardware": ()}, "number of hardware"),
        ({"batches": (0, 4)}, "batches must be at least 1, got 0"),
        ({"ctx": -1}, "ctx must be"),
        ({"most_tokens": 1}, "most_tokens"),
    ],
)
def test_nothing_to_draw_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        block_cost(**given)
