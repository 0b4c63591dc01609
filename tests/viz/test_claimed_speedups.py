"""The wrong formulas of the figure are those of ``check_claim``, and recommend another K."""

import numpy as np
import pytest

from specjax import theory
from specjax.viz.claimed_speedups import claimed_speedups


def test_each_formula_recommends_its_own_k_and_only_one_the_right_one(tmp_path):
    found, _ = claimed_speedups(0.8, 5, 0.1, k_max=12)
    assert [one.best_k for one in found] == [theory.optimal_k(0.8, 0.1), 7, 1, 12]
    found, axes = claimed_speedups(0.7, 5, 0.1, k_max=12)
    by_name = {one.name: one for one in found}
    np.testing.assert_allclose(
        by_name["right"].over_k, theory.speedup(0.7, np.arange(1, 13), 0.1), rtol=1e-12
    )
    for name, formula in (
        ("right", "speedup"),
        ("no bonus", "accepted over cost"),
        ("limit", "limit of accepted over cost"),
        ("linear", "linear tokens over cost"),
    ):
        value = by_name[name].over_k[4]
        claim = theory.check_claim(0.7, 5, 0.1, value, tolerance=1e-9)
        assert claim.formula == formula
        assert claim.right == (name == "right")
    assert "alpha = 0.7" in axes[1].get_title()
    axes[0].get_figure(root=True).savefig(tmp_path / "claims.png", dpi=60)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"alpha": 1.0}, "1 - alpha"), ({"K": 0}, "K must be"), ({"c": -0.1}, "c must be")],
)
def test_nothing_to_draw_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        claimed_speedups(**given)
