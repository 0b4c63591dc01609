"""The picture of one draft token: its bars are p and q, and its colours the three shares."""

import numpy as np
import pytest

from specjax.viz.acceptance import KEPT, REFUSED, RESIDUAL, acceptance_shares

P, Q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.1, 0.3, 0.3, 0.3])


def test_both_laws_are_split_where_rejection_sampling_splits_them(tmp_path):
    shares, ax = acceptance_shares(P, Q, list("abcd"), title="mine")
    assert np.allclose(shares.kept + shares.refused, Q)
    assert np.allclose(shares.kept + shares.residual, P)
    assert shares.refused.sum() == pytest.approx(shares.residual.sum())
    heights = {c.get_label(): [bar.get_height() for bar in c] for c in ax.containers}
    drawn = [label for label in heights if not label.startswith("_")]
    assert [label[:3] for label in drawn] == ["min", "max", "max"]
    assert "0.600 of all" in drawn[0]
    assert np.allclose(heights[drawn[1]], shares.refused)
    assert np.allclose(heights[drawn[2]], shares.residual)
    assert len({KEPT, REFUSED, RESIDUAL}) == 3
    assert ax.get_title(loc="left") == "mine"
    ax.get_figure(root=True).savefig(tmp_path / "shares.png")
    assert acceptance_shares(P, Q, list("abcd"), ax=ax)[1] is ax


@pytest.mark.parametrize("p", [[0.5, 0.5], [0.5, 0.5, 0.5, 0.0], [1.5, -0.5, 0.0, 0.0]])
def test_what_is_no_law_is_refused(p):
    with pytest.raises(ValueError, match="p must be a law over the 4 words"):
        acceptance_shares(p, Q, list("abcd"))
