"""The figure of lowered programs shows the numbers it was given."""

import pytest

from specjax.viz.lowering import Lowered, lowered_calls


def test_bars_are_the_counts():
    rows = [Lowered("decomposed", 0, 300), Lowered("npu", 40, 100)]
    ratios, axes = lowered_calls(rows)
    assert ratios == (3, 1)
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == [0, 40, 300, 60]
    with pytest.raises(ValueError, match="at least one"):
        lowered_calls([])
