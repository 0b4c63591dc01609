"""Figures of laws, trees, logs and budgets carry the numbers they are drawn from."""

import numpy as np
import pytest

from specjax import theory
from specjax.traces import tokens_by_k as ask
from specjax.traces.explain import Measured, explain
from specjax.viz.draft_tree import draft_tree
from specjax.viz.residual_bars import residual_bars
from specjax.viz.round_budget import round_budget
from specjax.viz.tokens_by_k import tokens_by_k
from tests.traces.synthetic import draw

P, Q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.4, 0.1, 0.3])
PARENTS, CHANCES = [0, 0, 0, 1, 1, 3], [1.0, 0.6, 0.2, 0.5, 0.3, 0.4]


def save(ax, path):
    """Draw the figure: what cannot be drawn fails here."""
    ax.get_figure(root=True).savefig(path, dpi=60)


def test_accepted_and_recovered_tokens_have_the_targets_law(tmp_path):
    data, ax = residual_bars(P, Q, labels=["the", "a", "an", "one"])
    np.testing.assert_allclose(data.common + (1 - data.alpha) * data.residual, P)
    assert data.alpha == pytest.approx(0.65)
    np.testing.assert_allclose(data.common + data.missing, P)
    np.testing.assert_allclose(data.common + data.rejected, Q)
    tops = [bar.get_y() + bar.get_height() for box in ax.containers[1::2] for bar in box]
    np.testing.assert_allclose(tops, [*P, *Q])
    assert "0.650" in ax.get_title(loc="left")
    save(ax, tmp_path / "residual.png")


def test_the_chances_of_a_trees_nodes_sum_to_its_tokens(tmp_path):
    nodes, ax = draft_tree(PARENTS, CHANCES)
    assert sum(node.reached for node in nodes) == pytest.approx(
        theory.tree_tokens(PARENTS, CHANCES)
    )
    assert [node.depth for node in nodes] == [0, 1, 1, 2, 2, 3]
    places = {(node.depth, node.height) for node in nodes}
    assert len(places) == len(nodes)
    assert nodes[5].reached == pytest.approx(0.12)
    assert f"{sum(node.reached for node in nodes):.2f}" in ax.get_title(loc="left")
    save(ax, tmp_path / "tree.png")
    alone, ax = draft_tree([0], [1.0])
    assert len(alone) == 1
    save(ax, tmp_path / "root.png")


def test_the_points_of_a_log_end_at_its_own_k(tmp_path):
    trace = draw([0.3, 0.9] * 5, 40)
    curves, ax = tokens_by_k(trace, range(9))
    assert curves[:2] == ask(trace, range(9))[:2] or np.isnan(curves.truncated[-1])
    points = ax.lines[4]
    np.testing.assert_array_equal(points.get_xdata(), np.arange(5))
    assert points.get_ydata()[-1] == pytest.approx(trace.emitted[trace.rounds].mean())
    for line, name in zip(ax.lines, ("one_alpha", "beta", "mixture", "markov"), strict=False):
        np.testing.assert_allclose(line.get_ydata(), getattr(curves, name))
    save(ax, tmp_path / "tokens.png")


@pytest.mark.parametrize("parts", [True, False])
def test_a_budgets_bars_end_where_its_numbers_do(tmp_path, parts):
    times = {"draft_s": 0.01, "verify_s": 0.04} if parts else {}
    found = explain(
        Measured(num_speculative_tokens=4, alpha=0.5, plain_s=0.03, round_s=0.06, **times)
    )
    slabs, ax = round_budget(found)
    for bar, end in (("brings", found.tokens_per_round), ("costs", found.round_cost)):
        assert sum(slab.width for slab in slabs if slab.bar == bar) == pytest.approx(end)
    assert len(slabs) == (6 if parts else 4)
    assert ax.get_title(loc="left").startswith("Slower: 0.97x" if found.speedup < 1 else "Faster")
    save(ax, tmp_path / "budget.png")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: residual_bars(P, Q[::2]), "broadcast|one shape|sum to 1"),
        (lambda: residual_bars(P, Q, labels=["a"]), "V labels, got"),
        (lambda: draft_tree([0, 1], [1.0, 0.5]), "index - parent"),
        (lambda: draft_tree([0], [1.0], labels=[]), "a label per node, 1, got 0"),
        (
            lambda: round_budget(explain(Measured(num_speculative_tokens=4, alpha=0.5))),
            "was not measured",
        ),
    ],
)
def test_nothing_to_draw_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
