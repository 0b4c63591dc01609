"""The picture of an audit: a dot per finding, a bar for chance, colours for the verdict."""

import pytest

from specjax.viz.findings import DIFFERENT, LEAST, SAME, Found, audit_findings

ROWS = (Found("sound", 0.02, 0.025, False), Found("broken", 0.3, 0.02, True))


def test_dots_are_measured_and_bars_are_chance(tmp_path):
    ratios, ax = audit_findings(ROWS, title="mine")
    assert ratios == pytest.approx((0.8, 15))
    dots = [(float(line.get_xdata()[0]), line.get_color()) for line in ax.lines]
    assert dots == [(0.02, SAME), (0.3, DIFFERENT)]
    ends = [bar.get_x() + bar.get_width() for bar in ax.patches]
    assert ends == pytest.approx([0.025, 0.02])
    assert ax.patches[0].get_x() == LEAST
    assert [label.get_text() for label in ax.get_yticklabels()] == ["sound", "broken"]
    assert ax.get_title(loc="left") == "mine"
    ax.get_figure(root=True).savefig(tmp_path / "findings.png")
    assert audit_findings(ROWS, ax=ax)[1] is ax


def test_nothing_found_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        audit_findings(())
