"""The comparison's bars are the measured numbers, and their quotient is a round's cost."""

import pytest

from specjax.viz.methods import Method, method_comparison

ROWS = (
    Method("plain", 100.0, 1.0, 1.0, None),
    Method("ngram", 150.0, 1.5, 1.8, 0.25),
    Method("draft_model", 80.0, 0.8, 3.2, 0.55),
)


def test_bars_carry_the_numbers_and_the_cost_of_a_round(tmp_path):
    bars, ax = method_comparison(ROWS)
    assert [bar.name for bar in bars] == ["plain", "ngram", "draft_model"]
    assert [bar.round_cost for bar in bars] == pytest.approx([1.0, 1.2, 4.0])
    lengths = [patch.get_width() for patch in ax.patches]
    assert lengths == [1.0, 1.0, 1.8, 1.5, 3.2, 0.8]
    (line,) = ax.lines
    assert list(line.get_xdata()) == [1.0, 1.0]
    ax.get_figure(root=True).savefig(tmp_path / "methods.png", dpi=150)


def test_a_slower_method_looks_different_and_says_so():
    _, ax = method_comparison(ROWS)
    colours = [patch.get_facecolor() for patch in ax.patches[1::2]]
    assert colours[0] == colours[1] != colours[2]
    assert any("3.20 tokens per round, a round costs 4.00*" in text.get_text() for text in ax.texts)
    assert any("0.80x of plain's speed" in text.get_text() for text in ax.texts)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[:2] == ["plain", "ngram\n25% of drafted accepted"]


def test_the_picture_says_how_it_was_measured_and_what_its_colours_mean():
    _, ax = method_comparison([*ROWS, ROWS[1]._replace(spread=(1.4, 1.7))], note="K = 4, 2 cores")
    assert "K = 4, 2 cores" in ax.get_xlabel()
    assert "derived" in ax.get_xlabel()
    legend = ax.get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == 3
    assert any("(1.40x to 1.70x)" in text.get_text() for text in ax.texts)


@pytest.mark.parametrize("rows", [(), (Method("broken", 0.0, 0.0, 1.0, None),)])
def test_nothing_to_compare_is_refused(rows):
    with pytest.raises(ValueError, match=r"at least one|positive"):
        method_comparison(rows)
