"""The picture of rules: its points are the rows, and it says what bounds them."""

import pytest

from specjax.audit.rules import EXACT, LOSSLESS, LOSSY, Audit, Audited
from specjax.viz.rules import FLOOR, Point, rule_comparison

CHAIN, TREE = (0, 0, 1), (0, 0, 0)
ROWS = (
    Audited("walk", LOSSLESS, 0.0, 1.5, 9, 0.0, 0.0, 0.0, CHAIN),
    Audited("rejection", EXACT, 3e-8, 2.2, 9, 1e-7, 0.0, 0.0, CHAIN),
    Audited("rejection_tree", EXACT, 4e-8, 2.2, 9, 1e-7, 0.0, 0.0, CHAIN),
    Audited("typical", LOSSY, 0.2, 2.6, 9, 0.7, 0.0, 0.0, CHAIN),
    Audited("siblings", EXACT, 3e-8, 2.9, 9, 1e-7, 0.0, 0.0, TREE),
)


def test_rules_that_do_the_same_share_a_point_and_other_drafts_are_left_out():
    points, ax = rule_comparison(Audit(ROWS, 2.3))
    assert points == (
        Point(("walk",), LOSSLESS, 1.5, 0.0),
        Point(("rejection", "rejection_tree"), EXACT, 2.2, 4e-8),
        Point(("typical",), LOSSY, 2.6, 0.2),
    )
    drawn = {(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in ax.lines[1:]}
    assert drawn == {(1.5, FLOOR), (2.2, 4e-8), (2.6, 0.2)}
    written = [text.get_text() for text in ax.texts]
    assert {"walk", "rejection, rejection_tree", "typical"} < set(written)


def test_the_bound_is_a_line_and_the_picture_saves(tmp_path):
    _, ax = rule_comparison(Audit(ROWS, 2.3), title="mine")
    assert list(ax.lines[0].get_xdata()) == [2.3, 2.3]
    assert any("no exact rule" in text.get_text() for text in ax.texts)
    assert ax.get_title(loc="left") == "mine"
    ax.get_figure(root=True).savefig(tmp_path / "rules.png", dpi=150)
    _, again = rule_comparison(Audit(ROWS[:1], 2.3), ax=ax)
    assert again is ax


def test_nothing_to_compare_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        rule_comparison(Audit((), 1.0))
