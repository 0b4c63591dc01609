"""Figures of drafting without a model carry the numbers they are drawn from."""

import numpy as np
import pytest

from specjax.viz.acceptance_by_match import acceptance_by_match
from specjax.viz.gain_by_overlap import gain_by_overlap


def test_acceptance_is_counted_by_match_length(tmp_path):
    match = np.array([0, 1, 1, 1, 1, 3, 3, 9, 20])
    right = np.array([False, True, False, False, False, True, False, True, True])
    lines, ax = acceptance_by_match({"suffix": (match, right)}, longest=5)
    line = lines["suffix"]
    assert line.match.tolist() == [1, 3, 5]  # no match is no draft; the longest are one
    assert line.num_drafts.tolist() == [4, 2, 2]
    np.testing.assert_allclose(line.rate, [0.25, 0.5, 1.0])
    assert ((line.low < line.rate) & (line.rate <= line.high)).all()
    np.testing.assert_allclose(ax.lines[0].get_ydata(), line.rate)
    ax.get_figure(root=True).savefig(tmp_path / "match.png", dpi=60)


def test_every_request_is_a_point(tmp_path):
    kinds = {"edits": ([0.9, 0.8], [3.0, 2.5]), "new": ([0.1], [1.1])}
    points, ax = gain_by_overlap(kinds)
    assert points.overlap.tolist() == [0.9, 0.8, 0.1]
    assert points.tokens_per_round.tolist() == [3.0, 2.5, 1.1]
    assert points.rank_correlation == pytest.approx(1.0)
    assert "1.00" in ax.get_title(loc="left")
    assert [line.get_label() for line in ax.lines] == ["edits", "new"]
    ax.get_figure(root=True).savefig(tmp_path / "overlap.png", dpi=60)
    with pytest.raises(ValueError, match="at least 3"):
        gain_by_overlap({"new": ([0.1], [1.1])})
