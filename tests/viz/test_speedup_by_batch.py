"""Speedup by batch: the numbers of ``speedup_vs_batch``, and the best K never below plain."""

import numpy as np
import pytest

from specjax import theory
from specjax.viz.speedup_by_batch import speedup_by_batch


def dense(B, m):
    """Time a pass of Qwen3-32B on an H200, without context."""
    return theory.decode_time_roofline(B, m, 0, theory.QWEN3_32B, theory.H200)


def test_lines_are_the_formulas_and_the_best_k_falls_with_the_batch(tmp_path):
    (panel,), (ax,) = speedup_by_batch({"dense": dense}, 0.7, depths=(1, 3, 8))
    for k, line in zip(panel.depths, panel.speedup, strict=True):
        exact = theory.speedup_vs_batch(panel.batches, 0.7, k, 0, theory.QWEN3_32B, theory.H200)
        np.testing.assert_allclose(line, exact)
    assert panel.best[0] == 8
    assert panel.best[-1] == 0
    assert (np.diff(panel.best) <= 0).all()
    envelope = ax.lines[0].get_ydata()
    np.testing.assert_allclose(envelope, np.maximum(panel.speedup.max(axis=0), 1))
    ax.get_figure(root=True).savefig(tmp_path / "batch.png", dpi=60)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"targets": {}}, "number of targets"),
        ({"targets": {"dense": dense}, "depths": (0, 1)}, "depths must be at least 1"),
        ({"targets": {"dense": dense}, "alpha": 1.5}, "alpha must be"),
    ],
)
def test_nothing_to_draw_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        speedup_by_batch(**given)
