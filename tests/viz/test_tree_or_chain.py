"""The figure of trees and chains carries the formulas' numbers."""

import numpy as np
import pytest

from specjax import theory
from specjax.viz.tree_or_chain import tree_or_chain


def test_the_best_tree_is_the_chain_up_to_the_dot(tmp_path):
    drafters = {"sure": [0.8, 0.1], "unsure": [0.4, 0.2, 0.1]}
    (sure, unsure), ax = tree_or_chain(drafters, range(1, 25))
    np.testing.assert_allclose(sure.chain, theory.tokens_per_step(0.8, np.arange(24)))
    assert unsure.tree[5] == pytest.approx(theory.tree_optimal([0.4, 0.2, 0.1], 6).tokens)
    assert (sure.tree >= sure.chain - 1e-12).all()
    # a sibling of the root's child is worth 0.1; the chain's n-th token 0.8^n, 0.107 at n = 10
    assert sure.chain_up_to == 11
    assert unsure.chain_up_to == 2  # 0.2 > 0.4^2
    solid, dashed, dot = ax.lines[:3]
    np.testing.assert_array_equal(solid.get_ydata(), sure.tree)
    np.testing.assert_array_equal(dashed.get_ydata(), sure.chain)
    assert dot.get_xdata()[0] == 11
    ax.get_figure(root=True).savefig(tmp_path / "trees.png", dpi=60)


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="need a drafter and a size"):
        tree_or_chain({})
    with pytest.raises(ValueError, match="sum of acc_vector"):
        tree_or_chain({"a": [0.9, 0.2]})
